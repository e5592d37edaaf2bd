-- Found jobs that an operator wants ended.

CREATE TABLE tombstones (
    node       TEXT NOT NULL,
    job        INTEGER NOT NULL,
    generation INTEGER NOT NULL,
    PRIMARY KEY (node, job, generation)
) STRICT, WITHOUT ROWID;
