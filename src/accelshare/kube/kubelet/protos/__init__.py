"""Messages of kubelet's and the runtime's sockets: .proto files, and what protoc makes of them.

The generated files are kept beside their source, so that nobody needs a compiler to install or run.
After a change of a .proto file: `python -m accelshare.kube.kubelet.protos.generate`.
"""
