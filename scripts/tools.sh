#!/usr/bin/env bash
# Builds the programs that the tests run against (Kubernetes, KubeRay's operator, Kueue, kwok, helm, an S3 server,
# promtool, Argo's executor) from their Go modules, at pinned versions, into $LORARL_CACHE/bin (default
# ~/.cache/lorarl/bin). A stamp beside each binary says what it was built from, so only new versions are built. Before a
# build begins, it says how long that takes. All of them take 15 GB of Go's caches. Other files that a program needs
# (custom resource definitions, webhooks) are copied from its module to $LORARL_CACHE/share/<name>.
#   scripts/tools.sh              all of them, except those of gpu
#   scripts/tools.sh servers      those that most tests need; they run as any user
#   scripts/tools.sh unit         those of one tier of tests: unit, storage, run; apiserver needs all servers
#   scripts/tools.sh long         those that only slow tests need (`make test-long`)
#   scripts/tools.sh node         those that a whole node also needs, as root (`make cluster`)
#   scripts/tools.sh gpu          those that a node with GPUs also needs (`make gpu-node`); needs a C compiler
#   scripts/tools.sh etcd kubectl some of them
#   scripts/tools.sh --list       what there is, and whether it is up to date
# LORARL_TOOL_VERSIONS='k8s.io/kubernetes@v1.29.6 ...' takes other versions of modules; name another $LORARL_CACHE too.
set -euo pipefail

# name | group | minutes to build on two idle cores | how | module@version | package | folders of the module to keep in
# share/<name>, if any. To add a tool, add a line.
#   own:  built in the module's own folder, with the dependencies that its authors tested
#   wrap: built in a module that requires it, because it cannot be built in its own folder (nested modules, replaces)
#   tree: built from a folder of this repository; raise its version when it changes
#   files: no program, only the folders to keep
TOOLS='
etcd                    servers 2 wrap go.etcd.io/etcd/server/v3@v3.6.8  go.etcd.io/etcd/server/v3
kube-apiserver          servers 7 wrap k8s.io/kubernetes@v1.34.4         k8s.io/kubernetes/cmd/kube-apiserver
kubectl                 servers 2 wrap k8s.io/kubernetes@v1.34.4         k8s.io/kubernetes/cmd/kubectl
kube-controller-manager servers 3 wrap k8s.io/kubernetes@v1.34.4         k8s.io/kubernetes/cmd/kube-controller-manager
kube-scheduler          servers 1 wrap k8s.io/kubernetes@v1.34.4         k8s.io/kubernetes/cmd/kube-scheduler
ray-operator            servers 3 own  github.com/ray-project/kuberay/ray-operator@v1.6.2 . config
kueue                   servers 3 own  sigs.k8s.io/kueue@v0.19.2         ./cmd/kueue config
kwok                    servers 1 own  sigs.k8s.io/kwok@v0.8.0           ./cmd/kwok
helm                    servers 2 own  helm.sh/helm/v3@v3.21.4           ./cmd/helm
versitygw               servers 1 own  github.com/versity/versitygw@v1.8.0 ./cmd/versitygw
promtool                servers 3 own  github.com/prometheus/prometheus@v0.316.0 ./cmd/promtool
gitops-health           servers 1 tree tests/support/gitops_health@1          .
argoexec                long    5 own  github.com/argoproj/argo-workflows/v4@v4.0.5 ./cmd/argoexec manifests/base/crds
kubeflow-trainer        long    1 files github.com/kubeflow/trainer/v2@v2.3.0 - manifests/base/crds
kubelet                 node    3 wrap k8s.io/kubernetes@v1.34.4         k8s.io/kubernetes/cmd/kubelet
kube-proxy              node    1 wrap k8s.io/kubernetes@v1.34.4         k8s.io/kubernetes/cmd/kube-proxy
containerd              node    3 own  github.com/containerd/containerd/v2@v2.2.0 ./cmd/containerd
ctr                     node    1 own  github.com/containerd/containerd/v2@v2.2.0 ./cmd/ctr
containerd-shim-runc-v2 node    1 own  github.com/containerd/containerd/v2@v2.2.0 ./cmd/containerd-shim-runc-v2
coredns                 node    3 own  github.com/coredns/coredns@v1.14.7 .
buildkitd               node    4 wrap github.com/moby/buildkit@v0.27.0  github.com/moby/buildkit/cmd/buildkitd
buildctl                node    1 wrap github.com/moby/buildkit@v0.27.0  github.com/moby/buildkit/cmd/buildctl
nvidia-device-plugin    gpu     2 own  github.com/NVIDIA/k8s-device-plugin@v0.18.0 ./cmd/nvidia-device-plugin
pause                   node    1 tree tools/node/go/pause@1             main.go
hello                   node    1 tree tools/node/go/hello@1             main.go
'
for module in ${LORARL_TOOL_VERSIONS:-}; do
  grep -q " ${module%@*}@" <<<"$TOOLS" || { echo "LORARL_TOOL_VERSIONS: got $module, which no tool is built from" >&2; exit 2; }
  TOOLS="$(sed "s| ${module%@*}@[^ ]*| $module|" <<<"$TOOLS")"
done
RECIPE=1 # part of every stamp; raise it when the build changes

cache="${LORARL_CACHE:-$HOME/.cache/lorarl}"
[[ "$cache" = /* ]] || cache="$PWD/$cache" # programs are built in the folders of their modules
bin="$cache/bin"
share="$cache/share"
root="$(cd "$(dirname "$0")/.." && pwd)"
# containerd's btrfs snapshotter needs C headers. promtool needs no clients of clouds. Prometheus's workspace names
# folders that its module lacks.
export CGO_ENABLED=0 GOWORK=off GOFLAGS="${GOFLAGS:-} -tags=no_btrfs,remove_all_sd"

say() { echo "tools: $*" >&2; }

tool() { awk -v name="$1" '$1 == name' <<<"$TOOLS"; }

members() { awk -v group="$1" '$2 == group {print $1}' <<<"$TOOLS"; }

# The servers that a tier of tests needs; tests/trainer needs none.
declare -A OF_TIER=(
  [unit]='helm promtool gitops-health'
  [storage]='versitygw'
  [run]='etcd kube-apiserver versitygw'
)

stamp() { # module@version package folders
  echo "recipe $RECIPE: $1 $2${3:+ and $3}"
}

up_to_date() { # name how stamp
  { [ "$2" = files ] && [ -d "$share/$1" ] || [ -x "$bin/$1" ]; } && [ "$(cat "$bin/$1.stamp" 2>/dev/null)" = "$3" ]
}

# k8s.io/kubernetes takes its staging modules (k8s.io/api, ...) from its own tree with replace directives. These do not
# apply in a module that requires it. The staging modules are published as v0.MINOR.PATCH; its go.mod lists them.
kubernetes_replacements() {
  local version="$1" folder
  folder="$(download "k8s.io/kubernetes@$version")" || return 1
  awk -v version="v0.${version#v1.}" '$2 == "=>" && $3 ~ /^\.\/staging\// {print "replace " $1 " => " $1 " " version}
    $1 == "replace" && $4 ~ /^\.\/staging\// {print "replace " $2 " => " $2 " " version}' "$folder/go.mod"
}

# The version that Kubernetes's programs report. Without it they report v0.0.0.
kubernetes_flags() {
  local version="$1" minor="${1#v1.}"
  echo "-X k8s.io/component-base/version.gitVersion=$version -X k8s.io/component-base/version.gitMajor=1" \
    "-X k8s.io/component-base/version.gitMinor=${minor%%.*}"
}

# Prints the folder of a module; fetches it first if it is missing.
download() {
  local answer
  answer="$(go mod download -json "$1")" || { echo "$answer" >&2; return 1; }
  awk -F '"' '$2 == "Dir" {print $4}' <<<"$answer"
}

# Each step has its own `|| return`, because bash ignores -e in a function whose result is tested.
build() { # name how module@version package
  local name="$1" how="$2" module="${3%@*}" version="${3##*@}" package="$4" folder flags="-s -w"
  [ "$how" != files ] || return 0
  if [ "$how" = own ]; then
    folder="$(download "$module@$version")" || return 1
  elif [ "$how" = tree ]; then
    folder="$root/$module"
  else
    folder="$work/${module//\//_}@$version"
    if [ ! -d "$folder" ]; then
      mkdir -p "$folder"
      printf 'module tools\n\ngo 1.24.0\n\nrequire %s %s\n' "$module" "$version" >"$folder/go.mod"
      [ "$module" != k8s.io/kubernetes ] || kubernetes_replacements "$version" >>"$folder/go.mod" || return 1
    fi
    (cd "$folder" && go get -tool "$package@$version" && go mod tidy) >"$work/log" 2>&1 ||
      { cat "$work/log" >&2; return 1; }
    [ "$module" != k8s.io/kubernetes ] || flags="$flags $(kubernetes_flags "$version")"
  fi
  # A file of Argo's is a symbolic link, which Go's modules do not hold.
  if [ "$name" = argoexec ]; then
    cp -r --no-preserve=mode "$folder" "$work/argo" || return 1
    folder="$work/argo"
    cp "$folder"/workflow/executor/osspecific/signal_{darwin,linux}.go || return 1
  fi
  # This one talks to the driver through its C library, which it opens where it runs. All others are static.
  [ "$name" != nvidia-device-plugin ] || local -x CGO_ENABLED=1
  (cd "$folder" && go build -ldflags "$flags" -o "$bin/.$name.$$" "$package") || return 1
  mv "$bin/.$name.$$" "$bin/$name" # in one step, so that a running test keeps the old one
}

# Copies folders of a module to share/<name>. They are writable, and stay when Go's module cache is gone.
keep() { # name module@version folders,with,commas
  local folder
  folder="$(download "$2")" || return 1
  rm -rf "${share:?}/$1" && mkdir -p "$share/$1" || return 1
  (cd "$folder" && cp -r --no-preserve=mode ${3//,/ } "$share/$1/")
}

main() {
  local list=0 name minutes how module package folders started of_tier wanted=() total=0
  for name in "$@"; do
    case "$name" in
      --list) list=1 ;;
      servers | long | node | gpu) mapfile -t -O ${#wanted[@]} wanted < <(members "$name") ;;
      apiserver) mapfile -t -O ${#wanted[@]} wanted < <(members servers) ;;
      unit | storage | run) read -ra of_tier <<<"${OF_TIER[$name]}" && wanted+=("${of_tier[@]}") ;;
      *) [ -n "$(tool "$name")" ] || {
           say "got $name, expected one of: $(awk 'NF {printf "%s ", $1}' <<<"$TOOLS")"
           return 2
         }
         wanted+=("$name") ;;
    esac
  done
  [ ${#wanted[@]} -gt 0 ] || mapfile -t wanted < <(awk 'NF && $2 != "gpu" {print $1}' <<<"$TOOLS")

  local missing=()
  for name in "${wanted[@]}"; do
    read -r _ _ minutes how module package folders <<<"$(tool "$name")"
    if up_to_date "$name" "$how" "$(stamp "$module" "$package" "$folders")"; then
      [ "$list" = 0 ] || echo "$name ${module##*@}: up to date"
    else
      [ "$list" = 0 ] || echo "$name ${module##*@}: not built yet"
      missing+=("$name") total=$((total + minutes))
    fi
  done
  [ "$list" = 0 ] && [ ${#missing[@]} -gt 0 ] || return 0

  if ! command -v go >/dev/null; then
    say "Go is not installed (https://go.dev/doc/install), so these are not built: ${missing[*]}." \
      "The tests that need them are skipped."
    return 0
  fi
  mkdir -p "$bin"
  say "building once, in about $total min on two idle cores: ${missing[*]}"
  work="$(mktemp -d)"
  trap 'rm -rf "$work"' EXIT
  for name in "${missing[@]}"; do
    read -r _ _ _ how module package folders <<<"$(tool "$name")"
    started=$SECONDS
    say "building $name from $module"
    build "$name" "$how" "$module" "$package" || { say "$name could not be built"; return 1; }
    [ -z "$folders" ] || keep "$name" "$module" "$folders" ||
      { say "the files of $name could not be copied"; return 1; }
    stamp "$module" "$package" "$folders" >"$bin/.$name.stamp.$$"
    mv "$bin/.$name.stamp.$$" "$bin/$name.stamp" # the old file may have another link
    say "$name: $((SECONDS - started)) s"
  done
}

main "$@"
