"""The requests that the client makes in our tests, answered. `CONTROL` is Modal's server, `ROUTER` a machine of its."""

from __future__ import annotations

import asyncio
import importlib
import time
from typing import TYPE_CHECKING, Any

from grpclib import GRPCError, Status
from modal_proto import api_pb2
from modal_proto import task_command_router_pb2 as router_pb2

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.support.modal.guest import Exec
    from tests.support.modal.plane import Plane

    Method = Callable[[Plane, Any], Awaitable[None]]

CONTROL: dict[str, Method] = {}
ROUTER: dict[str, Method] = {}
PULL_PROBLEMS = {
    "missing": "manifest unknown: no such image",
    "nobody": "pull access denied, repository does not exist or may require authorization: server message: insufficient_scope",
    "private": "unauthorized: authentication required",
    "ended": "the builder was shut down",
    "busy": "toomanyrequests: You have reached your unauthenticated pull rate limit",
}
"""What registries say of images whose name has such a part."""
_SUCCESS = api_pb2.GenericResult(status=api_pb2.GenericResult.GENERIC_STATUS_SUCCESS)


def _answers(
    table: dict[str, Method], *names: str
) -> Callable[[Callable[[Plane, Any], Awaitable[Any]]], Any]:
    """A function from request to answer, under one or more names."""

    def register(function: Callable[[Plane, Any], Awaitable[Any]]) -> Any:
        async def method(plane: Plane, stream: Any) -> None:
            answer = await function(plane, await stream.recv_message())
            plane.faults.afterwards(name)
            await stream.send_message(answer)

        for name in names:
            table[name] = method
        return function

    return register


@_answers(CONTROL, "ClientHello")
async def hello(plane: Plane, request: Any) -> api_pb2.ClientHelloResponse:
    return api_pb2.ClientHelloResponse()


@_answers(CONTROL, "AuthTokenGet")
async def auth_token(plane: Plane, request: Any) -> api_pb2.AuthTokenGetResponse:
    from tests.support.modal.plane import make_token

    return api_pb2.AuthTokenGetResponse(token=make_token())


@_answers(CONTROL, "EnvironmentGetOrCreate")
async def environment(plane: Plane, request: Any) -> api_pb2.EnvironmentGetOrCreateResponse:
    settings = api_pb2.EnvironmentSettings(image_builder_version="2025.06")
    metadata = api_pb2.EnvironmentMetadata(name=request.deployment_name, settings=settings)
    return api_pb2.EnvironmentGetOrCreateResponse(environment_id="en-1", metadata=metadata)


@_answers(CONTROL, "AppGetOrCreate")
async def app(
    plane: Plane, request: api_pb2.AppGetOrCreateRequest
) -> api_pb2.AppGetOrCreateResponse:
    if request.environment_name not in ("", "main"):
        raise GRPCError(Status.NOT_FOUND, f"Environment '{request.environment_name}' not found")
    return api_pb2.AppGetOrCreateResponse(app_id=f"ap-{request.app_name}")


@_answers(CONTROL, "MountBatchedCheckExistence")
async def check_files(plane: Plane, request: Any) -> api_pb2.MountBatchedCheckExistenceResponse:
    return api_pb2.MountBatchedCheckExistenceResponse(
        missing_sha256_hex_hashes=request.sha256_hex_hashes
    )


@_answers(CONTROL, "MountPutFile")
async def put_file(plane: Plane, request: Any) -> api_pb2.MountPutFileResponse:
    return api_pb2.MountPutFileResponse(exists=True)


@_answers(CONTROL, "MountGetOrCreate")
async def mount(
    plane: Plane, request: api_pb2.MountGetOrCreateRequest
) -> api_pb2.MountGetOrCreateResponse:
    # By content, so that the same files are the same image.
    mount_id = (
        f"mo-{abs(hash(tuple(sorted((file.filename, file.sha256_hex) for file in request.files))))}"
    )
    plane.mounts[mount_id] = list(request.files)
    return api_pb2.MountGetOrCreateResponse(mount_id=mount_id)


@_answers(CONTROL, "ImageGetOrCreate")
async def image(
    plane: Plane, request: api_pb2.ImageGetOrCreateRequest
) -> api_pb2.ImageGetOrCreateResponse:
    image_id = plane.build(request.image)
    for name, problem in PULL_PROBLEMS.items():
        if any(f"/{name}/" in command for command in request.image.dockerfile_commands):
            ended = name == "ended"
            failed = api_pb2.GenericResult.GENERIC_STATUS_FAILURE
            failed = api_pb2.GenericResult.GENERIC_STATUS_TERMINATED if ended else failed
            result = api_pb2.GenericResult(status=failed, exception=problem)
            return api_pb2.ImageGetOrCreateResponse(image_id=image_id, result=result)
    return api_pb2.ImageGetOrCreateResponse(image_id=image_id, result=_SUCCESS)


@_answers(CONTROL, "ImageFromId")
async def image_from_id(plane: Plane, request: Any) -> api_pb2.ImageFromIdResponse:
    if request.image_id not in plane.images:
        raise GRPCError(Status.NOT_FOUND, f"no image {request.image_id}")
    return api_pb2.ImageFromIdResponse(image_id=request.image_id)


@_answers(CONTROL, "ImageDelete")
async def image_delete(plane: Plane, request: api_pb2.ImageDeleteRequest) -> Any:
    if plane.images.pop(request.image_id, None) is None:
        raise GRPCError(Status.NOT_FOUND, f"no image {request.image_id}")
    return _empty()


async def _create(plane: Plane, request: Any, *, old: bool) -> Any:
    faults = plane.faults
    if faults.creating >= faults.most_creating:
        faults.refused += 1
        raise GRPCError(Status.RESOURCE_EXHAUSTED, "too many requests")
    faults.creating += 1
    try:
        guest = plane.new_guest(request.definition, request.tags, old=old)
        await asyncio.to_thread(plane.start, guest)
    finally:
        faults.creating -= 1
    return guest


@_answers(CONTROL, "SandboxCreateV2")
async def create(
    plane: Plane, request: api_pb2.SandboxCreateV2Request
) -> api_pb2.SandboxCreateV2Response:
    guest = await _create(plane, request, old=False)
    access = api_pb2.CommandRouterAccess(url=plane.url, jwt=_token())
    return api_pb2.SandboxCreateV2Response(
        sandbox_id=guest.sandbox_id,
        task_id=guest.task_id,
        command_router_access=access,
    )


@_answers(CONTROL, "SandboxCreate")
async def create_old(
    plane: Plane, request: api_pb2.SandboxCreateRequest
) -> api_pb2.SandboxCreateResponse:
    guest = await _create(plane, request, old=True)
    return api_pb2.SandboxCreateResponse(sandbox_id=guest.sandbox_id)


@_answers(CONTROL, "SandboxGetTaskId", "SandboxGetTaskIdV2")
async def task_id(plane: Plane, request: Any) -> api_pb2.SandboxGetTaskIdResponse:
    return api_pb2.SandboxGetTaskIdResponse(task_id=plane.by_id(request.sandbox_id).task_id)


@_answers(CONTROL, "TaskGetCommandRouterAccess")
async def router_access_old(
    plane: Plane, request: Any
) -> api_pb2.TaskGetCommandRouterAccessResponse:
    return api_pb2.TaskGetCommandRouterAccessResponse(url=plane.url, jwt=_token())


@_answers(CONTROL, "SandboxGetCommandRouterAccess")
async def router_access(
    plane: Plane, request: Any
) -> api_pb2.SandboxGetCommandRouterAccessResponse:
    plane.by_id(request.sandbox_id)
    return api_pb2.SandboxGetCommandRouterAccessResponse(url=plane.url, jwt=_token())


@_answers(CONTROL, "SandboxGetFromNameV2")
async def from_name(plane: Plane, request: Any) -> api_pb2.SandboxGetFromNameResponse:
    for guest in plane.running():
        if guest.definition.name == request.sandbox_name:
            return api_pb2.SandboxGetFromNameResponse(sandbox_id=guest.sandbox_id)
    raise GRPCError(Status.NOT_FOUND, f"no sandbox {request.sandbox_name}")


@_answers(CONTROL, "SandboxWait", "SandboxWaitV2")
async def wait(plane: Plane, request: api_pb2.SandboxWaitRequest) -> api_pb2.SandboxWaitResponse:
    guest, deadline = plane.by_id(request.sandbox_id), time.monotonic() + request.timeout
    while guest.look() is None and time.monotonic() < deadline:
        await asyncio.sleep(0.05)
    return api_pb2.SandboxWaitResponse(result=guest.look())


@_answers(CONTROL, "SandboxTerminate", "SandboxTerminateV2")
async def terminate(plane: Plane, request: Any) -> api_pb2.SandboxTerminateResponse:
    await asyncio.to_thread(plane.by_id(request.sandbox_id).terminate)
    return api_pb2.SandboxTerminateResponse()


@_answers(CONTROL, "SandboxListV2")
async def listing(plane: Plane, request: api_pb2.SandboxListRequest) -> api_pb2.SandboxListResponse:
    """A page of three at most, so that the client has to ask again."""
    wanted = {tag.tag_name: tag.tag_value for tag in request.tags}
    found = [
        guest
        for guest in plane.running()
        if wanted.items() <= guest.tags.items()
        and (not request.before_timestamp or guest.created_at < request.before_timestamp)
    ]
    found.sort(key=lambda guest: -guest.created_at)
    infos = [
        api_pb2.SandboxInfo(id=guest.sandbox_id, created_at=guest.created_at) for guest in found[:3]
    ]
    return api_pb2.SandboxListResponse(sandboxes=infos)


@_answers(CONTROL, "SandboxTagsGet", "SandboxTagsGetV2")
async def tags(plane: Plane, request: Any) -> api_pb2.SandboxTagsGetResponse:
    found = plane.by_id(request.sandbox_id).tags
    return api_pb2.SandboxTagsGetResponse(
        tags=[api_pb2.SandboxTag(tag_name=name, tag_value=value) for name, value in found.items()]
    )


@_answers(CONTROL, "SandboxTagsSet")
async def set_tags(plane: Plane, request: api_pb2.SandboxTagsSetRequest) -> Any:
    plane.by_id(request.sandbox_id).tags = {tag.tag_name: tag.tag_value for tag in request.tags}
    return _empty()


def _empty() -> Any:
    # Its types are in a package of stubs that nothing else here needs.
    return importlib.import_module("google.protobuf.empty_pb2").Empty()


def _token() -> str:
    from tests.support.modal.plane import make_token

    return make_token()


@_answers(ROUTER, "TaskExecStart")
async def exec_start(
    plane: Plane, request: router_pb2.TaskExecStartRequest
) -> router_pb2.TaskExecStartResponse:
    guest = plane.by_task(request.task_id)
    errors = request.stderr_config == router_pb2.TASK_EXEC_STDERR_CONFIG_PIPE

    try:
        await asyncio.to_thread(
            guest.start_exec,
            request.exec_id,
            list(request.command_args),
            request.workdir,
            errors=errors,
            timeout_seconds=request.timeout_secs,
            loop=plane.loop,
        )
    except Exception as error:
        plane.by_task(request.task_id)
        raise GRPCError(Status.INTERNAL, str(error)) from error
    return router_pb2.TaskExecStartResponse()


@_answers(ROUTER, "TaskSnapshotFilesystem")
async def snapshot(plane: Plane, request: Any) -> router_pb2.TaskSnapshotFilesystemResponse:
    image_id = await asyncio.to_thread(plane.take_snapshot, plane.by_task(request.task_id))
    return router_pb2.TaskSnapshotFilesystemResponse(image_id=image_id)


@_answers(ROUTER, "TaskSnapshotDirectory")
async def snapshot_directory(
    plane: Plane, request: Any
) -> router_pb2.TaskSnapshotDirectoryResponse:
    guest = plane.by_task(request.task_id)
    image_id = f"im-folder{len(plane.folders)}"
    plane.folders[image_id] = await asyncio.to_thread(guest.folder, request.path.decode())
    return router_pb2.TaskSnapshotDirectoryResponse(image_id=image_id)


@_answers(ROUTER, "TaskMountDirectory")
async def mount_directory(plane: Plane, request: Any) -> Any:
    guest, data = plane.by_task(request.task_id), plane.folders[request.image_id]
    await asyncio.to_thread(guest.add_folder, request.path.decode(), data)
    return _empty()


def _exec_of(plane: Plane, task: str, exec_id: str) -> Exec:
    found = plane.by_task(task).execs.get(exec_id)
    if found is None:
        raise GRPCError(Status.NOT_FOUND, f"no command {exec_id}")
    return found


async def exec_read(plane: Plane, stream: Any) -> None:
    request = await stream.recv_message()
    command = _exec_of(plane, request.task_id, request.exec_id)
    if request.file_descriptor == router_pb2.TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDERR:
        await _code_of(plane, request)
        for start in range(request.offset, len(command.err), 65536):
            await stream.send_message(
                router_pb2.TaskExecStdioReadResponse(data=command.err[start : start + 65536])
            )
        return
    sent = 0
    async for part in command.read_out(request.offset):
        limit = plane.faults.cut_after_bytes
        if limit is not None and sent + len(part) > limit:
            plane.faults.cuts += 1
            if part[: limit - sent]:
                await stream.send_message(
                    router_pb2.TaskExecStdioReadResponse(data=part[: limit - sent])
                )
            raise GRPCError(Status.UNAVAILABLE, "the stream was cut")
        sent += len(part)
        await stream.send_message(router_pb2.TaskExecStdioReadResponse(data=part))
    plane.by_task(request.task_id)


ROUTER["TaskExecStdioRead"] = exec_read


async def _write_at(command: Exec, offset: int, data: bytes, *, eof: bool) -> None:
    """What was written before is not written again."""
    fresh = data[max(0, command.written - offset) :]
    command.written = max(command.written, offset + len(data))
    if (fresh or eof) and not command.stdin_closed:
        command.stdin_closed = eof
        await command.write(fresh, eof)


@_answers(ROUTER, "TaskExecStdinWrite")
async def stdin_write(
    plane: Plane, request: router_pb2.TaskExecStdinWriteRequest
) -> router_pb2.TaskExecStdinWriteResponse:
    command = _exec_of(plane, request.task_id, request.exec_id)
    await _write_at(command, request.offset, request.data, eof=request.eof)
    return router_pb2.TaskExecStdinWriteResponse()


@_answers(ROUTER, "TaskExecStdinStatus")
async def stdin_status(plane: Plane, request: Any) -> router_pb2.TaskExecStdinStatusResponse:
    command = _exec_of(plane, request.task_id, request.exec_id)
    return router_pb2.TaskExecStdinStatusResponse(
        num_bytes_written=command.written, closed=command.stdin_closed
    )


@_answers(ROUTER, "TaskExecWait")
async def exec_wait(plane: Plane, request: Any) -> router_pb2.TaskExecWaitResponse:
    return router_pb2.TaskExecWaitResponse(code=await _code_of(plane, request))


async def _code_of(plane: Plane, request: Any) -> int:
    try:
        return await _exec_of(plane, request.task_id, request.exec_id).wait()
    except GRPCError:
        raise
    except Exception as error:
        plane.by_task(request.task_id)
        raise GRPCError(Status.INTERNAL, str(error)) from error


@_answers(ROUTER, "TaskExecPoll")
async def exec_poll(plane: Plane, request: Any) -> router_pb2.TaskExecPollResponse:
    code = _exec_of(plane, request.task_id, request.exec_id).code
    return (
        router_pb2.TaskExecPollResponse()
        if code is None
        else router_pb2.TaskExecPollResponse(code=code)
    )
