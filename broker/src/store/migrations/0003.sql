-- Roles in place of one flag, names of groups, tokens that know what they are good for and when
-- they were used, shares of sessions, and the audit log.

UPDATE users SET body = json_set(
    json_remove(body, '$.admin'),
    '$.role', CASE WHEN json_extract(body, '$.admin') THEN 'admin' ELSE 'user' END,
    '$.group_names', json('{}')
);

UPDATE tokens SET body = json_set(
    body,
    '$.scope', 'full',
    '$.by_sign_in', json('false'),
    '$.created', 0,
    '$.last_used', NULL
);

UPDATE sessions SET body = json_set(body, '$.shares', json('{}'));

-- Numbers are never used again: who follows the log asks for what comes after one.
CREATE TABLE audit (
    number  INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms   INTEGER NOT NULL,
    user    TEXT NOT NULL,
    origin  TEXT NOT NULL,
    action  TEXT NOT NULL,
    subject TEXT NOT NULL,
    outcome TEXT NOT NULL,
    detail  TEXT NOT NULL
) STRICT;

CREATE INDEX audit_at ON audit (at_ms);
