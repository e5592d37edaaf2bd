-- Reservations that are not over.

CREATE TABLE reservations (
    name TEXT PRIMARY KEY,
    body TEXT NOT NULL
) STRICT, WITHOUT ROWID;
