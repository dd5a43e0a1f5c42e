//! exchange (in the making).
