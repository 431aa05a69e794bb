#!/bin/bash
# Renders the containerd configuration of k3s and of RKE2 from k3s' own code: tests/fixtures/rancher/VERSION.{k3s,rke2}.toml.
#
#   tests/lab/rancher/render.sh REPOSITORY COMMIT VERSION
#
# REPOSITORY: a git directory of k3s, of which RKE2 has the package too. COMMIT: k3s' there. VERSION: Kubernetes' of that
# commit. Needs Go. The package pkg/agent/templates is compiled as it is; what it imports is replaced by structs with the
# fields that the template reads. tests/fixtures/rancher/README.md says what was rendered. Not in CI.
set -eu
cd "$(dirname "$0")/../../.."
[ $# -eq 3 ] || { echo "usage: tests/lab/rancher/render.sh REPOSITORY COMMIT VERSION" >&2; exit 2; }
repository=$1 commit=$2 fixtures=$PWD/tests/fixtures/rancher/$3
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT

git -C "$repository" archive "$commit" pkg/agent/templates | tar -x -C "$directory"
cd "$directory"
rm -f pkg/agent/templates/*_test.go pkg/agent/templates/*_windows.go
mkdir -p pkg/daemons/config pkg/version wharfie/pkg/registries
cat > go.mod << 'EOF'
module github.com/k3s-io/k3s

go 1.21

require github.com/rancher/wharfie v0.0.0

replace github.com/rancher/wharfie => ./wharfie
EOF
printf 'module github.com/rancher/wharfie\n' > wharfie/go.mod
cat > wharfie/pkg/registries/registries.go << 'EOF'
package registries

type Registry struct{ Configs map[string]RegistryConfig }
type RegistryConfig struct {
	Auth *struct{ Username, Password, Auth, IdentityToken string }
	TLS  *struct {
		CAFile, CertFile, KeyFile string
		InsecureSkipVerify        bool
	}
}
EOF
printf 'package version\n\nvar Program = "k3s"\n' > pkg/version/version.go
cat > pkg/daemons/config/config.go << 'EOF'
package config

type Node struct {
	SELinux        bool
	DefaultRuntime string
	Containerd     struct{ Root, State, Address, Opt, Template, Registry, BlockIOConfig, RDTConfig string }
	AgentConfig    struct{ Snapshotter, PauseImage, CNIBinDir, CNIConfDir, ImageServiceSocket string }
}
EOF
cat > main.go << 'EOF'
package main

import (
	"os"

	"github.com/k3s-io/k3s/pkg/agent/templates"
	"github.com/k3s-io/k3s/pkg/daemons/config"
)

// As pkg/agent/config and pkg/agent/containerd fill them in on Linux, as root of a systemd service. RKE2 sets no CNI.
func main() {
	node := &config.Node{}
	program, pause := os.Args[1], os.Args[2]
	agent := "/var/lib/rancher/" + program + "/agent"
	node.Containerd.Root = agent + "/containerd"
	node.Containerd.Opt = agent + "/containerd"
	node.Containerd.State = "/run/k3s/containerd"
	node.Containerd.Address = "/run/k3s/containerd/containerd.sock"
	node.Containerd.Template = agent + "/etc/containerd"
	node.Containerd.Registry = agent + "/etc/containerd/certs.d"
	node.AgentConfig.Snapshotter = "overlayfs"
	node.AgentConfig.PauseImage = pause
	if program == "k3s" {
		node.AgentConfig.CNIBinDir = "/var/lib/rancher/k3s/data/cni"
		node.AgentConfig.CNIConfDir = agent + "/etc/cni/net.d"
	}
	data := templates.ContainerdConfig{
		NodeConfig:         node,
		SystemdCgroup:      true,
		EnableUnprivileged: true,
		ExtraRuntimes: map[string]templates.ContainerdRuntimeConfig{
			"crun": {RuntimeType: "io.containerd.runc.v2", BinaryName: "/usr/bin/crun"},
		},
		Program: program,
	}
	base := templates.ContainerdConfigTemplateV3
	text, err := templates.ParseTemplateFromConfig(base, base, data)
	if err != nil {
		panic(err)
	}
	os.Stdout.WriteString(text)
}
EOF
go run . k3s rancher/mirrored-pause:3.10.2 > "$fixtures.k3s.toml"
go run . rke2 index.docker.io/rancher/mirrored-pause:3.10.2 > "$fixtures.rke2.toml"
