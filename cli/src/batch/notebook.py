"""Runs a notebook as a batch job: its cells in order, in one kernel, its outputs written to the file as they come.

Carried in the carrel command, which puts it into the job's script. Arguments: the notebook, the file of the outputs, the
kernel's working directory, and what the notebook finds in sys.argv after its own name.
"""

import asyncio
import os
import re
import signal
import sys
import tempfile

# Outputs of a cell that still runs are written so often at most, seconds.
WRITE_EVERY = 2.0
# What SIGTERM is told to a shell as.
TERMINATED = 143


def fail(message):
    print(f"carrel: {message}", file=sys.stderr, flush=True)
    sys.exit(1)


try:
    import nbclient
    import nbformat
    from jupyter_client.kernelspec import KernelSpecManager
    from nbclient.exceptions import CellExecutionError, DeadKernelError
    from traitlets.config import Config
except ImportError as error:
    fail(
        f"a notebook needs the Python packages nbclient and ipykernel, and {sys.executable} of this container cannot"
        f" import {error.name}: install both in that environment (pip install nbclient ipykernel; Debian:"
        " python3-nbclient python3-ipykernel), or name an image or an environment that has them"
    )


def write(notebook, path):
    """Puts the notebook in place of the file, whole: who kills this leaves the old one or the new one."""
    path = os.path.realpath(path)
    mode = os.stat(path).st_mode & 0o777 if os.path.exists(path) else 0o666 & ~UMASK
    handle, beside = tempfile.mkstemp(prefix=".carrel-", suffix=".ipynb", dir=os.path.dirname(path))
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            nbformat.write(notebook, file)
        os.chmod(beside, mode)
        os.replace(beside, path)
    except BaseException:
        os.unlink(beside)
        raise


def output_name(path, output):
    """The file of the outputs, with sbatch's patterns filled in; a notebook that is written back has its own name."""
    task = os.environ.get("SLURM_ARRAY_TASK_ID")
    if output == path and task is None:
        return path
    job = os.environ.get("SLURM_JOB_ID", "")
    stands_for = {
        "%": "%",
        "j": job,
        "A": os.environ.get("SLURM_ARRAY_JOB_ID", job),
        "a": task or "4294967294",
        "x": os.environ.get("SLURM_JOB_NAME", ""),
        "u": os.environ.get("USER", ""),
    }
    if task is not None and (output == path or not re.search("%[ja]", output)):
        fail(
            "tasks of an array would write over each other's outputs: name a file for each of them, as with"
            " --notebook-output out-%a.ipynb"
        )
    return re.sub("%([%jAaxu])", lambda found: stands_for[found[1]], output)


def kernel_of(notebook):
    """The kernel that the notebook names; a Python notebook's may be this environment's own."""
    metadata = notebook.metadata
    spec = metadata.get("kernelspec", {})
    name = spec.get("name", "python3")
    language = spec.get("language") or metadata.get("language_info", {}).get("name") or "python"
    known = sorted(KernelSpecManager().find_kernel_specs())
    if name not in known and language == "python" and "python3" in known:
        print(f"carrel: there is no kernel {name!r} here: it runs with python3 of {sys.executable}", file=sys.stderr)
        name = "python3"
    if name in known:
        return name
    package = "ipykernel" if language == "python" else f"a Jupyter kernel for {language}"
    there = ", ".join(known) or "none"
    fail(
        f"the notebook's kernel {name!r} is not in this container (there: {there}): install {package} in the environment"
        f" of {sys.executable}, or name an image or an environment that has it"
    )


class Client(nbclient.NotebookClient):
    """Tells of what cells say as they say it."""

    arguments = ()
    dirty = False
    stop = None

    async def async_start_new_kernel_client(self):
        client = await super().async_start_new_kernel_client()
        # nbclient has just set its own, which ends the kernel and nothing else.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self.stop)
        if self.language == "python":
            client.execute(f"import sys; sys.argv[:] = {list(self.arguments)!r}; del sys", silent=True)
        return client

    def process_message(self, message, cell, index):
        self.dirty = True
        content = message["content"]
        if message["msg_type"] == "stream":
            to = sys.stderr if content["name"] == "stderr" else sys.stdout
            to.write(content["text"])
            to.flush()
        elif message["msg_type"] == "execute_result" and "text/plain" in content["data"]:
            print(content["data"]["text/plain"], flush=True)
        return super().process_message(message, cell, index)


async def run(notebook, output, client):
    async def keep():
        while True:
            await asyncio.sleep(WRITE_EVERY)
            if client.dirty:
                client.dirty = False
                write(notebook, output)

    told = []

    def stop():
        told.append(True)
        # What talks to the kernel while that is ended has nothing to say that matters.
        asyncio.get_running_loop().set_exception_handler(lambda *_: None)
        running.cancel()

    client.stop = stop
    running = asyncio.ensure_future(client.async_execute())
    keeping = asyncio.ensure_future(keep())
    try:
        done, _ = await asyncio.wait({running, keeping}, return_when=asyncio.FIRST_COMPLETED)
        if keeping in done:
            # The outputs cannot be written: what it does from now on would be lost.
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            keeping.result()
        await running
        return 0
    except (Exception, asyncio.CancelledError) as error:
        if told:
            print("carrel: the job is asked to end; what the notebook has said so far is written", file=sys.stderr)
            return TERMINATED
        if isinstance(error, DeadKernelError):
            print("carrel: the notebook's kernel died", file=sys.stderr)
            return 1
        if not isinstance(error, CellExecutionError):
            raise
        plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", error.traceback if hasattr(error, "traceback") else str(error))
        print(f"{plain.rstrip()}\ncarrel: a cell of the notebook failed", file=sys.stderr)
        return 1
    finally:
        keeping.cancel()
        write(notebook, output)


def main():
    path, output, directory, *arguments = sys.argv[1:]
    output = output_name(path, output)
    try:
        with open(path, encoding="utf-8") as file:
            notebook = nbformat.read(file, as_version=4)
    except (OSError, ValueError, nbformat.ValidationError, nbformat.reader.NotJSONError) as error:
        fail(f"cannot read the notebook {path}: {error}")
    if not os.path.isdir(directory):
        fail(f"the notebook's directory {directory} is not in this container")
    for cell in notebook.cells:
        if cell.cell_type == "code":
            # What stands there from the last run would pass for this one's.
            cell.outputs = []
            cell.execution_count = None
    # Sockets of this user in the file system, and not ports that whoever shares the network could try.
    config = Config({"KernelManager": {"transport": "ipc"}})
    client = Client(
        notebook,
        timeout=None,
        kernel_name=kernel_of(notebook),
        resources={"metadata": {"path": directory}},
        config=config,
    )
    client.language = notebook.metadata.get("kernelspec", {}).get("language", "python")
    client.arguments = (path, *arguments)
    try:
        write(notebook, output)
        code = asyncio.run(run(notebook, output, client))
    except OSError as error:
        fail(f"cannot write the notebook's outputs to {output}: {error}")
    sys.stdout.flush()
    sys.exit(code)


# ipykernel loads a debugger, which warns of what nobody debugs here.
os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
UMASK = os.umask(0o022)
os.umask(UMASK)
main()
