"""What the lab runs, pinned. The hashes behind these versions stand in modules/*/go.sum.

A new version is three steps: change it here and in modules/<name>/go.mod (`k8s.io/kubernetes` v1.X.Y and, on
every line of its staging modules, v0.X.Y), run `go mod tidy` there, and run the e2e tests.
"""

KUBERNETES = "v1.37.0"
CONTAINERD = "v2.4.2"

# go.mod of both module sets asks for this much; an older go would fetch another toolchain, which we forbid.
GO_MINIMUM = (1, 26)
