//! Credit: how many bytes of chunks one end may still send for a request before the other end has taken some.

use agentrun_protocol::executor::INITIAL_CREDIT_BYTES;
use tokio::sync::Semaphore;

/// More than this is never kept, however much is granted.
const MAX_CREDIT_BYTES: usize = 1 << 30;

/// The sender's side of one request.
pub struct Credit(Semaphore);

impl Credit {
    pub fn new() -> Self {
        Credit(Semaphore::new(INITIAL_CREDIT_BYTES as usize))
    }

    /// Wait until `bytes` may be sent, and take them.
    pub async fn take(&self, bytes: usize) {
        let bytes = u32::try_from(bytes).expect("a chunk is far smaller than 4 GiB");
        if let Ok(permit) = self.0.acquire_many(bytes).await {
            permit.forget();
        }
    }

    /// The receiver has taken so many bytes.
    pub fn grant(&self, bytes: u64) {
        let room = MAX_CREDIT_BYTES.saturating_sub(self.0.available_permits());
        self.0.add_permits(usize::try_from(bytes).unwrap_or(usize::MAX).min(room));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_sender_waits_when_its_credit_is_used_up() {
        let credit = Credit::new();
        credit.take(INITIAL_CREDIT_BYTES as usize).await;
        let mut waiting = std::pin::pin!(credit.take(10));
        assert!(futures_pending(waiting.as_mut()).await);
        credit.grant(9);
        assert!(futures_pending(waiting.as_mut()).await);
        credit.grant(1);
        waiting.await;
    }

    #[test]
    fn absurd_grants_are_capped() {
        let credit = Credit::new();
        for _ in 0..4 {
            credit.grant(u64::MAX);
        }
        assert_eq!(credit.0.available_permits(), MAX_CREDIT_BYTES);
    }

    async fn futures_pending(future: std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
        let mut future = Some(future);
        std::future::poll_fn(|context| {
            let future = future.take().expect("polled once");
            std::task::Poll::Ready(future.poll(context).is_pending())
        })
        .await
    }
}
