//! The one-shot ticket of an attempt, and the Secret that carries it to the runner.

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use super::Owner;

/// 32 random bytes. Never printed; wiped when dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct Ticket(Zeroizing<[u8; 32]>);

impl Ticket {
    /// Fresh from the system's generator.
    pub fn random() -> Result<Self, aws_lc_rs::error::Unspecified> {
        let mut bytes = Zeroizing::new([0; 32]);
        aws_lc_rs::rand::fill(bytes.as_mut())?;
        Ok(Ticket(bytes))
    }

    /// Hexadecimal, as in `status.ticketSha256`.
    pub fn sha256(&self) -> String {
        Sha256::digest(self.0.as_ref()).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[cfg(test)]
    pub fn of(bytes: [u8; 32]) -> Self {
        Ticket(Zeroizing::new(bytes))
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ticket(…)")
    }
}

/// Immutable: what the kubelet mounts is what was hashed. `ca` is the PEM that the runner trusts for the gateway.
pub fn secret(owner: &Owner, attempt: i64, ticket: &Ticket, ca: &str) -> Secret {
    Secret {
        metadata: owner.metadata(attempt),
        immutable: Some(true),
        type_: Some("Opaque".into()),
        data: Some(
            [("ticket".to_owned(), ByteString(ticket.0.to_vec())), ("ca.crt".to_owned(), ByteString(ca.as_bytes().to_vec()))].into(),
        ),
        ..Secret::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_differ_and_are_not_printed() {
        let (a, b) = (Ticket::random().unwrap(), Ticket::random().unwrap());
        assert_ne!(a, b);
        assert_eq!(a.sha256().len(), 64);
        assert_eq!(format!("{:?}", Ticket::of([7; 32])), "Ticket(…)");
        assert_eq!(Ticket::of([0; 32]).sha256(), "66687aadf862bd776c8fc18b8e9f8e20089714856ee233b3902a591d0d5f2925");
    }
}
