// Package deploy checks the files that deploy holdfast serve: the systemd unit by systemd's own
// tools, the Kubernetes manifests against the types of its API, and all of them against the flags
// of the command.
package deploy
