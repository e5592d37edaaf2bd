-- Accounts, what is set for users, qualities of service and partitions. Why a job waits is found
-- anew by each pass, and not kept.

CREATE TABLE accounts (
    name TEXT PRIMARY KEY,
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE people (
    user TEXT PRIMARY KEY,
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE qos (
    name TEXT PRIMARY KEY,
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE partitions (
    name TEXT PRIMARY KEY,
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;

UPDATE jobs SET body = json_set(body, '$.phase', 'Pending') WHERE state = 'PENDING';
