-- Jobs that are over leave the table of jobs, which is what a start reads, and are found here. What is looked for
-- is in the indexes, so that a search reads nothing else.

CREATE TABLE history (
    id           INTEGER PRIMARY KEY,
    owner        TEXT NOT NULL,
    account      TEXT NOT NULL,
    partition    TEXT NOT NULL,
    state        TEXT NOT NULL,
    name         TEXT NOT NULL,
    submitted_ms INTEGER NOT NULL,
    ended_ms     INTEGER NOT NULL,
    body         TEXT NOT NULL
) STRICT;

CREATE INDEX history_by_end ON history
    (ended_ms, id, submitted_ms, owner, account, partition, state, name);
CREATE INDEX history_by_owner ON history
    (owner, ended_ms, id, submitted_ms, account, partition, state, name);
-- How long jobs were known at most: how long after a time those ended that were known then.
CREATE INDEX history_by_span ON history (ended_ms - submitted_ms);

-- What they have used, decayed, and what interactive ones held of each model of GPU.
CREATE TABLE past_use (
    user      TEXT NOT NULL,
    account   TEXT NOT NULL,
    qos       TEXT NOT NULL,
    partition TEXT NOT NULL,
    body      TEXT NOT NULL,
    PRIMARY KEY (user, account, qos, partition)
) STRICT, WITHOUT ROWID;

CREATE TABLE past_demand (
    model TEXT PRIMARY KEY,
    body  TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Times in which jobs held something, a row for each model of GPU: written with the job.
CREATE TABLE runs (
    started_ms    INTEGER NOT NULL,
    job           INTEGER NOT NULL,
    model         TEXT NOT NULL,
    ended_ms      INTEGER,
    user          TEXT NOT NULL,
    account       TEXT NOT NULL,
    gpu_milli     INTEGER NOT NULL,
    billing_milli INTEGER NOT NULL,
    PRIMARY KEY (started_ms, job, model)
) STRICT, WITHOUT ROWID;

CREATE INDEX runs_held ON runs (started_ms) WHERE ended_ms IS NULL;
CREATE INDEX runs_by_span ON runs (ended_ms - started_ms);
