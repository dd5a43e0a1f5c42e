"""Prices after a discount, in cents."""


def discounted(price: int, percent: int) -> int:
    """The price of an article with `percent` off, rounded down to a cent."""
    if not 0 <= percent <= 100:
        raise ValueError(f"percent must be between 0 and 100, not {percent}")
    return price - percent
