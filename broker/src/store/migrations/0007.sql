-- Job arrays. What is kept of one beside its jobs: a row from its submission on, for good; it is over once it has left the
-- state. Tasks that are over are found by their array, and by their index where a job is one task.

CREATE TABLE arrays (
    id   INTEGER PRIMARY KEY,
    over INTEGER NOT NULL,
    body TEXT NOT NULL
) STRICT;

CREATE INDEX arrays_in_state ON arrays (id) WHERE over = 0;

ALTER TABLE history ADD COLUMN array INTEGER;
ALTER TABLE history ADD COLUMN task INTEGER;

CREATE INDEX history_by_array ON history (array, ended_ms, id, task) WHERE array IS NOT NULL;
