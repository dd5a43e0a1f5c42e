//! Sending a run's archive after the run was created, again and again until it is there or refused.

use std::time::Duration;

use agentrun_protocol::people::SourceView;
use bytes::Bytes;
use tokio::time::Instant;

use crate::archive::Archive;
use crate::cluster::Fault;
use crate::door::Door;
use crate::failure::Failure;

/// How long it is tried.
const PATIENCE: Duration = Duration::from_secs(180);
const FIRST_WAIT: Duration = Duration::from_millis(200);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Repeating is harmless: the source is known by its content.
pub async fn send(door: &Door<'_>, archive: Archive, keyed: bool) -> Result<SourceView, Failure> {
    let body = Bytes::from(archive.bytes);
    let begun = Instant::now();
    let mut wait = FIRST_WAIT;
    loop {
        let fault = match door.upload(body.clone()).await {
            Ok(view) => return Ok(view),
            Err(fault) => fault,
        };
        // The gateway learns of a new run by its watch, a moment later.
        let unknown = matches!(&fault, Fault::Refused(refusal) if refusal.from_gateway && refusal.status == 404);
        if !(fault.is_passing() || fault.gateway_absent() || unknown) || begun.elapsed() > PATIENCE {
            let next = if keyed { "repeat the command with the same --idempotency-key, or: " } else { "submit anew, and: " };
            return Err(door
                .failure(fault, &format!("uploading the source of {}", door.run))
                .advice(format!("The run was created and waits for its source; {next}kubectl agentrun cancel {}", door.run)));
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}
