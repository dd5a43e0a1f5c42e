//! Tier T1: tests against a real API server without a node. One binary, since linking is slow, and one server for all of
//! them: each test works in a namespace of its own.

mod api {
    mod columns;
    mod examples;
    mod hostile;
    mod raw;
    mod server;
    mod submitter;
    mod tables;
    mod walls;
}
