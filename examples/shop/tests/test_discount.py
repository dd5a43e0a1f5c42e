import unittest

from shop.discount import discounted


class DiscountTest(unittest.TestCase):
    def test_a_fifth_off(self):
        self.assertEqual(discounted(5000, 20), 4000)

    def test_nothing_off(self):
        self.assertEqual(discounted(5000, 0), 5000)

    def test_rounds_down(self):
        self.assertEqual(discounted(999, 50), 499)

    def test_more_than_all_is_refused(self):
        with self.assertRaises(ValueError):
            discounted(5000, 101)


if __name__ == "__main__":
    unittest.main()
