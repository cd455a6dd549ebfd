{{/* Name of the objects: at most 50 characters, so that the names of pods and volumes fit. */}}
{{- define "raftlog.name" -}}
{{- $name := .Release.Name -}}
{{- if not (contains .Chart.Name $name) -}}{{- $name = printf "%s-%s" $name .Chart.Name -}}{{- end -}}
{{- $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "raftlog.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "raftlog.labels" -}}
{{ include "raftlog.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{/* Address of a pod in the headless service. Arguments: root, ordinal, port. */}}
{{- define "raftlog.address" -}}
{{- $root := index . 0 -}}{{- $name := include "raftlog.name" $root -}}
{{- printf "%s-%d.%s-nodes.%s.svc.%s:%d" $name (int (index . 1)) $name $root.Release.Namespace $root.Values.clusterDomain (int (index . 2)) -}}
{{- end -}}

{{/* Initial voters. A directory id has 22 characters, of which the last one holds two bits. */}}
{{- define "raftlog.voters" -}}
{{- $voters := list -}}
{{- range $id := until (int .Values.replicas) -}}
{{- $directory := printf "%s %d" $.Values.clusterId $id | sha256sum | trunc 21 -}}
{{- $voters = append $voters (printf "%d@%s:%sA" $id (include "raftlog.address" (list $ $id 9193)) $directory) -}}
{{- end -}}
{{- join "," $voters -}}
{{- end -}}

{{/* A node's node.toml. Arguments: root, ordinal. */}}
{{- define "raftlog.node" -}}
{{- $root := index . 0 -}}{{- $id := index . 1 -}}
{{- $pod := printf "%s-%d" (include "raftlog.name" $root) (int $id) -}}
{{- $servers := list -}}
{{- range $other := until (int $root.Values.replicas) -}}
{{- $servers = append $servers (include "raftlog.address" (list $root $other 9193)) -}}
{{- end -}}
[node]
id = {{ $id }}
directory = "/var/lib/raftlog/data"
topic = {{ $root.Values.topic | quote }}
bootstrap_servers = {{ $servers | toJson }}
[listeners.clients]
address = "0.0.0.0:9192"
advertised = {{ include "raftlog.address" (list $root $id 9192) | quote }}
[listeners.clients.tls]
certificate = "/etc/raftlog-tls/clients/{{ $pod }}.crt"
key = "/etc/raftlog-tls/clients/{{ $pod }}.key"
ca = "/etc/raftlog-tls/clients/ca.crt"
client_certificates = {{ $root.Values.tls.clients.clientCertificates | quote }}
[listeners.voters]
address = "0.0.0.0:9193"
advertised = {{ include "raftlog.address" (list $root $id 9193) | quote }}
[listeners.voters.tls]
certificate = "/etc/raftlog-tls/voters/{{ $pod }}.crt"
key = "/etc/raftlog-tls/voters/{{ $pod }}.key"
ca = "/etc/raftlog-tls/voters/ca.crt"
[access]
nodes = {{ $root.Values.access.nodes | quote }}
describe = {{ $root.Values.access.describe | toJson }}
read = {{ $root.Values.access.read | toJson }}
append = {{ $root.Values.access.append | toJson }}
admin = {{ $root.Values.access.admin | toJson }}
# Kubernetes' probes and Prometheus connect to the pod's address.
[metrics]
address = "0.0.0.0:9194"
allow_plaintext_beyond_loopback = true
{{- with $root.Values.config }}
{{ . | trim }}
{{- end }}
{{- end -}}
