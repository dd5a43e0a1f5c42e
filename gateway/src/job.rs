//! job (in the making).
