//! A streamed answer on its way to the client: a task of its own that ends with the stream, the client, the run's authority or a
//! timeout, whichever is first, and books the call accordingly.

use std::io;
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http::{HeaderValue, StatusCode, header};
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

use super::booking::{Bill, Booking, Ending};
use super::operation::Operation;
use super::refusal;
use super::relay::{Frame, Relay};
use super::revocation::Permit;
use super::upstream::{ReadError, next_chunk};

/// Frames under way to a slow client.
const QUEUE: usize = 16;
/// Time to get the error event out before the connection is broken off.
const LAST_WORDS: Duration = Duration::from_millis(50);

/// Longest wait for the end of a body whose last event has come.
const LAST_END: Duration = Duration::from_secs(2);

/// Everything a stream holds on to while it lasts.
pub struct Pump {
    pub upstream: Incoming,
    pub operation: Operation,
    pub usage_wanted: bool,
    pub booking: Booking,
    pub permit: Permit,
    pub slot: OwnedSemaphorePermit,
    pub idle: Duration,
    pub deadline: Instant,
    pub response_bytes: usize,
}

enum End {
    Client,
    Revoked,
    Failed(Ending),
}

impl Pump {
    /// Answer now, and let the task go on.
    pub fn start(self, tasks: &tokio_util::task::TaskTracker) -> Response {
        let media = if self.operation == Operation::GenerateArray { "application/json" } else { "text/event-stream" };
        let (sender, receiver) = mpsc::channel(QUEUE);
        tasks.spawn(self.run(sender));
        let mut response = Response::new(Body::from_stream(ReceiverStream::new(receiver)));
        *response.status_mut() = StatusCode::OK;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }

    async fn run(self, sender: mpsc::Sender<io::Result<Bytes>>) {
        let Pump { mut upstream, operation, usage_wanted, booking, permit, slot, idle, deadline, response_bytes } = self;
        let mut relay = Relay::new(operation, usage_wanted);
        let relaying = relay_all(&mut upstream, &mut relay, &sender, idle, deadline, response_bytes);
        let ended = tokio::select! {
            biased;
            () = permit.revoked().cancelled() => Err(End::Revoked),
            () = sender.closed() => Err(End::Client),
            ended = relaying => ended,
        };
        drop(upstream); // the provider stops here
        match ended {
            Ok(last) => {
                // Booked before the client can ask for more.
                booking.finish(Bill::Reported(relay.usage()), Ending::Ok);
                let _ = sender.send(Ok(last)).await;
            }
            Err(End::Client) => booking.finish(Bill::Reservation, Ending::ClientGone),
            Err(End::Revoked) => {
                booking.finish(Bill::Reservation, Ending::Revoked);
                break_off(&sender, relay.last_words(&permit.refusal())).await;
            }
            Err(End::Failed(ending)) => {
                booking.finish(Bill::Reservation, ending);
                let error = match ending {
                    Ending::TimedOut => refusal::timed_out(),
                    Ending::TooLarge => refusal::response_too_large(),
                    Ending::Refused => refusal::unavailable(),
                    _ => refusal::incomplete(),
                };
                break_off(&sender, relay.last_words(&error)).await;
            }
        }
        drop((permit, slot));
    }
}

/// Returns the terminal event, which is still to be sent.
async fn relay_all(
    upstream: &mut Incoming,
    relay: &mut Relay,
    sender: &mpsc::Sender<io::Result<Bytes>>,
    idle: Duration,
    deadline: Instant,
    response_bytes: usize,
) -> Result<Bytes, End> {
    let mut received = 0usize;
    loop {
        while let Some(frame) = relay.next_frame() {
            match frame {
                Frame::Forward(bytes) => match tokio::time::timeout_at(deadline, sender.send(Ok(bytes))).await {
                    Ok(Ok(())) => {}
                    Ok(Err(_)) => return Err(End::Client),
                    Err(_) => return Err(End::Failed(Ending::TimedOut)),
                },
                Frame::Done(bytes) => return Ok(bytes),
                Frame::UpstreamError => return Err(End::Failed(Ending::Refused)),
                Frame::TooLarge => return Err(End::Failed(Ending::TooLarge)),
            }
        }
        // After its last event a dialect without a terminal one has nothing more to say than that it ends.
        let patience = if relay.has_ended() { idle.min(LAST_END) } else { idle };
        match next_chunk(upstream, patience, deadline).await {
            Ok(Some(chunk)) => {
                received = received.saturating_add(chunk.len());
                if received > response_bytes {
                    return Err(End::Failed(Ending::TooLarge));
                }
                relay.feed(&chunk);
            }
            Err(ReadError::TooLarge) => return Err(End::Failed(Ending::TooLarge)),
            Err(ReadError::Broken) => return Err(End::Failed(Ending::Incomplete)),
            over => match (relay.end(), over) {
                (Some(last), _) => return Ok(last),
                (None, Err(_)) => return Err(End::Failed(Ending::TimedOut)),
                (None, Ok(_)) => return Err(End::Failed(Ending::Incomplete)),
            },
        }
    }
}

/// An error event for clients that read it, then a broken body for those that do not: never a clean end.
async fn break_off(sender: &mpsc::Sender<io::Result<Bytes>>, last_words: Bytes) {
    // A client that does not read cannot keep this task.
    let _ = tokio::time::timeout(Duration::from_secs(5), async {
        let _ = sender.send(Ok(last_words)).await;
        tokio::time::sleep(LAST_WORDS).await;
        let _ = sender.send(Err(io::Error::other("the stream was broken off"))).await;
    })
    .await;
}
