//! tls (in the making).
