{{- define "dra-exporter.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "dra-exporter.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "dra-exporter.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/*
The name of an object in a namespace, given as (list $ NAMESPACE); "" is the cluster. Outside of the
release's own namespace it begins with that, since a release elsewhere may have the same name. The dot
can't be part of a namespace's name.
*/}}
{{- define "dra-exporter.nameIn" -}}
{{- $root := index . 0 -}}
{{- if ne (index . 1) $root.Release.Namespace -}}
{{- $root.Release.Namespace }}.
{{- end -}}
{{- include "dra-exporter.fullname" $root -}}
{{- end -}}

{{- define "dra-exporter.selector" -}}
app.kubernetes.io/name: {{ include "dra-exporter.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "dra-exporter.labels" -}}
{{ include "dra-exporter.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The gateway is not an exporter: the exporters' selectors do not select its pods. */}}
{{- define "dra-exporter.gatewaySelector" -}}
app.kubernetes.io/name: {{ include "dra-exporter.name" . | trunc 55 | trimSuffix "-" }}-gateway
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "dra-exporter.gatewayLabels" -}}
{{ include "dra-exporter.gatewaySelector" . }}
{{ omit (include "dra-exporter.labels" . | fromYaml) "app.kubernetes.io/name" "app.kubernetes.io/instance" | toYaml }}
{{- end -}}

{{/* The address of the nodes' pages for links in alerts: the gateway's, else the given one. */}}
{{- define "dra-exporter.pageURL" -}}
{{- if .Values.gateway.url -}}
{{- trimSuffix "/" .Values.gateway.url }}/node/{{ "{{ $labels.node | urlquery }}" -}}
{{- else -}}
{{- .Values.prometheusRule.pageURL | trimSuffix "/" -}}
{{- end -}}
{{- end -}}

{{- define "dra-exporter.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "dra-exporter.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "dra-exporter.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The presets of the vendors, as YAML. */}}
{{- define "dra-exporter.presets" -}}
nvidia:
  sources: {amdgpu: false}
  runtimeClassName: nvidia
  nodeLabels: [nvidia.com/gpu.present, feature.node.kubernetes.io/pci-10de.present]
  deviceClassName: gpu.nvidia.com
  env:
    NVIDIA_VISIBLE_DEVICES: all
    NVIDIA_DRIVER_CAPABILITIES: utility
amd:
  sources: {intelgpu: false, nvml: false}
  deviceClassName: gpu.amd.com
  nodeLabels: [feature.node.kubernetes.io/amd-gpu]
intel:
  sources: {amdgpu: false, nvml: false}
  deviceClassName: gpu.intel.com
  nodeLabels: [intel.feature.node.kubernetes.io/gpu]
network:
  sources: {amdgpu: false, cpu: false, intelgpu: false, nvml: false}
cpu:
  sources: {amdgpu: false, intelgpu: false, netdev: false, nvme: false, nvml: false, rdma: false}
{{- end -}}

{{- define "dra-exporter.preset" -}}
{{- $all := include "dra-exporter.presets" . | fromYaml -}}
{{- $preset := dict -}}
{{- if .Values.vendor -}}
{{- $preset = get $all .Values.vendor -}}
{{- end -}}
{{- $preset | toYaml -}}
{{- end -}}

{{/* The runtime class: the given one, else the preset's, unless devices are provided in another way. */}}
{{- define "dra-exporter.runtimeClassName" -}}
{{- $preset := include "dra-exporter.preset" . | fromYaml -}}
{{- if .Values.runtimeClassName -}}
{{- .Values.runtimeClassName -}}
{{- else if not (or .Values.adminAccess.enabled .Values.nvidia.library) -}}
{{- $preset.runtimeClassName | default "" -}}
{{- end -}}
{{- end -}}

{{/* The nodes that have the vendor's devices. */}}
{{- define "dra-exporter.affinity" -}}
{{- $preset := include "dra-exporter.preset" . | fromYaml -}}
{{- if .Values.affinity -}}
{{- toYaml .Values.affinity -}}
{{- else if or (eq (toString .Values.onlyOnVendorNodes) "true") (and (eq (toString .Values.onlyOnVendorNodes) "") $preset.nodeLabels) -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
      {{- range required "onlyOnVendorNodes needs a vendor whose nodes have a label: nvidia, amd or intel" $preset.nodeLabels }}
      - matchExpressions: [{key: {{ . }}, operator: In, values: ["true"]}]
      {{- end }}
{{- end -}}
{{- end -}}

{{/*
Whether exporters serve HTTPS.
*/}}
{{- define "dra-exporter.tls" -}}
{{- with .Values.web.certificate.from -}}
{{- if $.Values.web.secretName -}}
{{- fail "web.certificate.from and web.secretName: one of them has the settings of the server" -}}
{{- end -}}
true
{{- else -}}
{{- if .Values.web.tls -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/*
The Secret and the key of the CA of the exporters' certificate, if the chart knows it.
*/}}
{{- define "dra-exporter.ca" -}}
{{- if .Values.web.certificate.from -}}
{{- dict "name" (printf "%s-tls" (include "dra-exporter.fullname" .)) "key" "ca.crt" | toYaml -}}
{{- else if and .Values.web.tls .Values.web.secretName .Values.web.certificate.caKey -}}
{{- dict "name" .Values.web.secretName "key" .Values.web.certificate.caKey | toYaml -}}
{{- end -}}
{{- end -}}

{{/*
The name in the exporters' certificate.
*/}}
{{- define "dra-exporter.serverName" -}}
{{- .Values.web.certificate.serverName | default (printf "%s.%s.svc" (include "dra-exporter.fullname" .) .Release.Namespace) -}}
{{- end -}}

{{/*
The TLS settings of a client of the exporters, as Prometheus has them. The CA is mounted at /etc/exporters.
*/}}
{{- define "dra-exporter.clientTLS" -}}
{{- if include "dra-exporter.ca" . -}}
{{- dict "ca_file" "/etc/exporters/ca.crt" "server_name" (include "dra-exporter.serverName" .) | toYaml -}}
{{- else if include "dra-exporter.tls" . -}}
{{- dict "insecure_skip_verify" true | toYaml -}}
{{- end -}}
{{- end -}}

{{- define "dra-exporter.kubeAuthorization" -}}
{{- if .Values.web.kubeAuthorization.enabled -}}
{{- if not .Values.kube.enabled -}}
{{- fail "web.kubeAuthorization needs kube.enabled: it asks the API server" -}}
{{- end -}}
true
{{- end -}}
{{- end -}}

{{/*
Whether the exporter writes events.
*/}}
{{- define "dra-exporter.events" -}}
{{- if .Values.incidents.events -}}
{{- if not .Values.kube.enabled -}}
{{- fail "incidents.events needs kube.enabled: events are written to the API server" -}}
{{- end -}}
true
{{- end -}}
{{- end -}}

{{/*
The rest of a mount of the host: readOnly alone leaves what is mounted below it writable. API servers
older than 1.30 do not have the field.
*/}}
{{- define "dra-exporter.recursiveReadOnly" -}}
{{- if and (ne .Values.recursiveReadOnly "Disabled") (semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version) -}}
, recursiveReadOnly: {{ .Values.recursiveReadOnly }}
{{- end -}}
{{- end -}}

{{/*
The folders of /sys that the program reads, each a mount of its own: without recursiveReadOnly, the
file systems that are mounted elsewhere below /sys would be writable.
*/}}
{{- define "dra-exporter.sysfs" -}}
[bus, class, devices, fs/cgroup]
{{- end -}}

{{/*
What Go's heap and stacks should stay below, in bytes: 80 % of the limit of memory. The rest is for the
program itself, C libraries, and the kernel's buffers of connections, which count too. Empty without a
limit.
*/}}
{{- define "dra-exporter.goMemoryLimit" -}}
{{- $limit := (.Values.resources.limits | default dict).memory -}}
{{- if kindIs "string" $limit -}}
{{- $number := regexFind "^[0-9]+(\\.[0-9]+)?" $limit -}}
{{- $units := dict "" 1 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 -}}
{{- $unit := trimPrefix $number $limit -}}
{{- if not (and $number (hasKey $units $unit)) -}}
{{- fail (printf "resources.limits.memory: %q is no number with one of the units k, M, G, T, Ki, Mi, Gi, Ti" $limit) -}}
{{- end -}}
{{- mulf $number (get $units $unit) 0.8 | int64 -}}
{{- else if $limit -}}
{{- mulf $limit 0.8 | int64 -}}
{{- end -}}
{{- end -}}

{{/* Where the state is kept: emptyDir, a folder of the host, or nothing. */}}
{{- define "dra-exporter.stateDir" -}}
{{- if .Values.incidents.dir -}}
{{- .Values.incidents.dir -}}
{{- else if eq (toString .Values.state.enabled) "true" -}}
{{- .Values.state.dir -}}
{{- end -}}
{{- end -}}
