-- How much the GPUs of a run were used, in thousandths of a GPU times milliseconds: busy, and held while that was
-- measured. Nothing where it was not.

ALTER TABLE runs ADD COLUMN used_busy INTEGER;
ALTER TABLE runs ADD COLUMN used_measured INTEGER;
