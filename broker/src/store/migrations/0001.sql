-- One table a kind of entity: what one looks things up by, and the whole as JSON.
-- Times are Unix milliseconds.

CREATE TABLE cluster (
    id          INTEGER PRIMARY KEY CHECK (id = 1),
    cluster     TEXT NOT NULL,
    incarnation INTEGER NOT NULL,
    body        TEXT NOT NULL
) STRICT;

CREATE TABLE users (
    name TEXT PRIMARY KEY,
    uid  INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE tokens (
    id         TEXT PRIMARY KEY,
    owner      TEXT NOT NULL,
    expires_ms INTEGER NOT NULL,
    body       TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE node_tokens (
    hash       BLOB PRIMARY KEY,
    expires_ms INTEGER NOT NULL,
    body       TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE nodes (
    name        TEXT PRIMARY KEY,
    certificate TEXT NOT NULL,
    body        TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE sessions (
    id    INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    name  TEXT NOT NULL,
    job   INTEGER,
    body  TEXT NOT NULL
) STRICT;

CREATE TABLE jobs (
    id           INTEGER PRIMARY KEY,
    session      INTEGER,
    owner        TEXT NOT NULL,
    name         TEXT NOT NULL,
    state        TEXT NOT NULL,
    submitted_ms INTEGER NOT NULL,
    ended_ms     INTEGER,
    body         TEXT NOT NULL
) STRICT;

CREATE TABLE removals (
    node    TEXT NOT NULL,
    session INTEGER NOT NULL,
    PRIMARY KEY (node, session)
) STRICT, WITHOUT ROWID;
