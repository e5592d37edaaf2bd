"""What a user of submitit does: a job, one that fails, an array, a gang, and one that is checkpointed and queued again."""

import os
import sys
import time
from pathlib import Path

import submitit


class Counts:
    """Counts to some number, slowly; goes on where it was when it is queued again."""

    def __init__(self, at=0):
        self.at = at

    def __call__(self, until, flag):
        begun_at = self.at
        while self.at < until:
            self.at += 1
            Path(flag).write_text(str(self.at))
            # The first run is interrupted here.
            while self.at == 3 and begun_at == 0:
                time.sleep(0.1)
        return begun_at, self.at

    def checkpoint(self, until, flag):
        return submitit.helpers.DelayedSubmission(Counts(self.at), until, flag)


def place():
    env = submitit.JobEnvironment()
    return env.global_rank, env.num_tasks, env.node, env.num_nodes, len(env.hostnames)


def fails():
    raise ValueError("as it should")


def executor(folder, **parameters):
    executor = submitit.SlurmExecutor(folder=folder, python="/usr/bin/python3")
    executor.update_parameters(time=5, mem="256MB", cpus_per_task=1, **parameters)
    return executor


def main():
    folder = Path(sys.argv[1])
    submitit.SlurmJob.watcher._delay_s = 1
    one = executor(folder / "one", job_name="one")
    added = one.submit(lambda a, b: a + b, 40, 2)
    failed = one.submit(fails)
    assert added.result() == 42
    try:
        failed.result()
        raise AssertionError("it does not fail")
    except submitit.core.utils.FailedJobError as error:
        assert "as it should" in str(error), error
    # Its result is there before its batch script has ended.
    patience = time.monotonic() + 60
    while failed.state in ("RUNNING", "COMPLETING") and time.monotonic() < patience:
        time.sleep(0.5)
    assert failed.state in ("FAILED", "UNKNOWN"), failed.state
    print("job", flush=True)

    array = executor(folder / "array", array_parallelism=2, job_name="array")
    jobs = array.map_array(lambda x: x * x, range(5))
    assert [job.result() for job in jobs] == [0, 1, 4, 9, 16]
    assert all("_" in job.job_id for job in jobs), [job.job_id for job in jobs]
    print("array", flush=True)

    gang = executor(folder / "gang", nodes=2, ntasks_per_node=2, job_name="gang")
    places = gang.submit(place).results()
    assert [p[0] for p in places] == [0, 1, 2, 3], places
    assert [p[2] for p in places] == [0, 0, 1, 1], places
    assert {(p[1], p[3], p[4]) for p in places} == {(4, 2, 2)}, places
    print("gang", flush=True)

    flag = folder / "flag"
    again = executor(folder / "again", job_name="again")
    job = again.submit(Counts(), 5, str(flag))
    while not (flag.exists() and flag.read_text() == "3"):
        time.sleep(0.1)
    job._interrupt()
    assert job.result() == (3, 5), job.result()
    print("again", flush=True)

    cancelled = one.submit(time.sleep, 1000)
    while cancelled.state != "RUNNING":
        time.sleep(0.5)
    cancelled.cancel()
    while not cancelled.done():
        time.sleep(0.5)
    assert cancelled.state.startswith("CANCELLED"), cancelled.state
    print("all", flush=True)


main()
