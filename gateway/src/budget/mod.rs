//! budget (in the making).
