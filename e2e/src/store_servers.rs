//! Servers that shared stores need, real ones on loopback: PostgreSQL from Debian's package, and an S3-compatible store. They
//! end with the test process, however it ends.

mod objects;
mod postgres;

pub use objects::{ACCESS_KEY, Objects, SECRET_KEY};
pub use postgres::Postgres;

use std::net::TcpListener;

use anyhow::Result;

/// A loopback port that was free a moment ago.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}
