-- `runs.next` is the number that the next event gets, `first` the lowest that is still there. `truncated` has one bit for each
-- class of events that has met its quota. Rows of `runs` are updated in place where there is room on their page.
CREATE TABLE runs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    uid text NOT NULL UNIQUE,
    namespace text NOT NULL,
    name text NOT NULL,
    next bigint NOT NULL DEFAULT 1,
    first bigint NOT NULL DEFAULT 1,
    closed_at bigint,
    purged boolean NOT NULL DEFAULT false,
    sandbox_events bigint NOT NULL DEFAULT 0,
    sandbox_bytes bigint NOT NULL DEFAULT 0,
    gateway_events bigint NOT NULL DEFAULT 0,
    gateway_bytes bigint NOT NULL DEFAULT 0,
    truncated bigint NOT NULL DEFAULT 0,
    dropped bigint NOT NULL DEFAULT 0,
    blobs bigint NOT NULL DEFAULT 0,
    blob_bytes bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 80);
CREATE INDEX runs_namespace ON runs (namespace);
CREATE INDEX runs_open ON runs (id) WHERE closed_at IS NULL;
CREATE INDEX runs_closed ON runs (closed_at) WHERE NOT purged;

CREATE TABLE events (
    run bigint NOT NULL REFERENCES runs (id),
    seq bigint NOT NULL,
    time bigint NOT NULL,
    attempt bigint NOT NULL,
    origin smallint NOT NULL,
    key text NOT NULL,
    kind text NOT NULL,
    data text NOT NULL,
    PRIMARY KEY (run, seq)
);
CREATE UNIQUE INDEX events_key ON events (run, attempt, origin, key);

-- Content that runs refer to, and where it is in the bucket. That a reference needs its blob is what keeps a blob from being
-- collected while a run comes to refer to it.
CREATE TABLE blobs (
    digest text PRIMARY KEY,
    object text NOT NULL
);
CREATE TABLE blob_refs (
    run bigint NOT NULL REFERENCES runs (id),
    digest text NOT NULL REFERENCES blobs (digest),
    bytes bigint NOT NULL,
    PRIMARY KEY (run, digest)
);
CREATE INDEX blob_refs_digest ON blob_refs (digest);
CREATE TABLE artifacts (
    run bigint NOT NULL REFERENCES runs (id),
    name text NOT NULL,
    digest text NOT NULL,
    PRIMARY KEY (run, name)
);

-- Objects that may be in the bucket and are no blob's: under way, or to be deleted. A doomed one never becomes a blob's.
CREATE TABLE loose_objects (
    object text PRIMARY KEY,
    delete_after timestamptz NOT NULL,
    doomed boolean NOT NULL DEFAULT false
);
CREATE INDEX loose_objects_delete_after ON loose_objects (delete_after);

-- The most that any gateway has written as spent, and what each gateway holds beyond it.
CREATE TABLE budget_spent (
    uid text PRIMARY KEY,
    requests bigint NOT NULL,
    upstream_attempts bigint NOT NULL,
    input_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cost_micros bigint NOT NULL
);
CREATE TABLE budget_slices (
    uid text NOT NULL,
    instance text NOT NULL,
    slice text NOT NULL,
    requests bigint NOT NULL,
    input_tokens bigint NOT NULL,
    output_tokens bigint NOT NULL,
    cost_micros bigint NOT NULL,
    PRIMARY KEY (uid, instance)
);
CREATE INDEX budget_slices_instance ON budget_slices (instance);
