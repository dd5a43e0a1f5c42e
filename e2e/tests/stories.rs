//! The user stories, on the real node with the chart installed: `make e2e`, or `make e2e STORY=happy_path`. One file each.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

mod stories {
    mod happy_path;
}
