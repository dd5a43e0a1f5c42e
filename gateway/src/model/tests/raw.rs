//! A provider written by hand on a socket, for what no HTTP server would send.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::dialects::Spoken;

/// What it does in answer to a request. After the last step it closes the connection in order.
#[derive(Clone)]
pub enum Step {
    Say(Vec<u8>),
    /// A byte at a time.
    Drip(Vec<u8>, Duration),
    /// So that what was said is read before what follows.
    Pause(Duration),
    /// Wait until the test lets it go on.
    Held,
    /// Nothing more, until the other side is gone.
    Hang,
    /// RST instead of FIN.
    Reset,
    /// Take another request on this connection.
    Next,
}

/// How far it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub requests: usize,
    /// Requests that were or are held: what was to be said before has been taken.
    pub held: usize,
    /// Requests whose steps are done, or whose other side is gone.
    pub done: usize,
}

/// Serves until dropped.
pub struct Raw {
    pub address: SocketAddr,
    progress: watch::Sender<Progress>,
    released: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl Raw {
    /// `answer` gets the number of the request, from 0.
    pub async fn new(answer: impl Fn(usize) -> Vec<Step> + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (progress, released) = (watch::Sender::<Progress>::default(), watch::Sender::new(false));
        let (answer, numbers) = (Arc::new(answer), Arc::new(AtomicUsize::new(0)));
        let (telling, waiting) = (progress.clone(), released.clone());
        let task = tokio::spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let (answer, numbers, telling, waiting) = (answer.clone(), numbers.clone(), telling.clone(), waiting.clone());
                tokio::spawn(async move {
                    let mut going = true;
                    while going && request(&mut stream).await.is_some() {
                        telling.send_modify(|progress| progress.requests += 1);
                        let steps = answer(numbers.fetch_add(1, Ordering::Relaxed));
                        going = perform(&mut stream, steps, &waiting, &telling).await;
                        telling.send_modify(|progress| progress.done += 1);
                    }
                });
            }
        });
        Raw { address, progress, released, task }
    }

    pub fn progress(&self) -> Progress {
        *self.progress.borrow()
    }

    /// Wait until it has come so far.
    pub async fn until(&self, what: impl Fn(&Progress) -> bool) {
        let mut progress = self.progress.subscribe();
        let reached = tokio::time::timeout(Duration::from_secs(10), progress.wait_for(|progress| what(progress))).await.is_ok();
        assert!(reached, "never came so far: {:?}", self.progress());
    }

    /// Let those go on that are held.
    pub fn release(&self) {
        self.released.send_replace(true);
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Read one request; nothing if the other side is gone.
async fn request(stream: &mut TcpStream) -> Option<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let (_, length) = head.split_once("content-length: ").expect("a length");
    let length: usize = length.split("\r\n").next().unwrap().parse().unwrap();
    stream.read_exact(&mut vec![0; length]).await.ok()?;
    Some(())
}

/// Whether another request is to be taken.
async fn perform(stream: &mut TcpStream, steps: Vec<Step>, released: &watch::Sender<bool>, progress: &watch::Sender<Progress>) -> bool {
    let _ = stream.set_nodelay(true);
    for step in steps {
        match step {
            Step::Say(bytes) => drop(stream.write_all(&bytes).await),
            Step::Drip(bytes, pause) => {
                for byte in bytes {
                    if stream.write_all(&[byte]).await.is_err() {
                        return false;
                    }
                    tokio::time::sleep(pause).await;
                }
            }
            Step::Pause(pause) => tokio::time::sleep(pause).await,
            Step::Held => {
                progress.send_modify(|progress| progress.held += 1);
                drop(released.subscribe().wait_for(|released| *released).await);
            }
            Step::Hang => {
                let _ = stream.read(&mut [0; 1]).await;
                return false;
            }
            Step::Reset => {
                stream.set_zero_linger().unwrap();
                return false;
            }
            Step::Next => return true,
        }
    }
    false
}

pub fn say(text: impl Into<String>) -> Step {
    Step::Say(text.into().into_bytes())
}

/// The header of an answer that is one, with these lines beside it, each with its end.
pub fn header(streamed: bool, more: &str) -> String {
    let media = if streamed { "text/event-stream" } else { "application/json" };
    format!("HTTP/1.1 200 OK\r\ncontent-type: {media}\r\n{more}\r\n")
}

/// The same with a length.
pub fn of_length(streamed: bool, length: usize) -> String {
    header(streamed, &format!("content-length: {length}\r\n"))
}

/// The whole body of a good answer.
pub fn body(spoken: Spoken, streamed: bool) -> String {
    if streamed { format!("{}{}", spoken.chunk, spoken.tail) } else { spoken.reply.to_owned() }
}

/// A good answer.
pub fn good(spoken: Spoken, streamed: bool) -> Vec<u8> {
    let body = body(spoken, streamed);
    (of_length(streamed, body.len()) + &body).into_bytes()
}
