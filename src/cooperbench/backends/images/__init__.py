"""OCI images without a container engine: pulled, unpacked and kept for the `local` backend.

`registry` asks a registry over HTTP, with the `credentials` of `docker login`. `model` has the
documents that it sends: an index leads to the manifest for this machine, and that to a
configuration and to layers. `download` saves layers to files, several at once, and continues after
an interruption. `compression` and `unpack` turn a layer, a compressed tar file, into a folder.
`store` keeps one folder per layer, named by its digest, so that images share what they have in
common. An overlay file system stacks these folders into the root of a sandbox; nothing is copied.
`pull` is the story of all this for one image. Every blob and every layer is checked against its
digest, and what fails leaves nothing behind.
"""
