//! Our own authority and the gateway's serving certificate, made and renewed in the operator's namespace where cert-manager
//! does not; and the token keys, made once.

pub mod certificate;
pub mod keeper;
pub mod rotation;
pub mod token_keys;
