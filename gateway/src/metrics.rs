//! metrics (in the making).
