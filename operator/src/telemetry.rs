//! Logs to standard error: text for people, or one JSON object a line. `RUST_LOG` filters.

use tracing_subscriber::EnvFilter;

/// Once, at start.
pub fn install(json: bool) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    if json {
        builder.json().flatten_event(true).init();
    } else {
        builder.with_ansi(false).init();
    }
}
