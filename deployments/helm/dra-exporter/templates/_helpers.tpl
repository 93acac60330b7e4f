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

{{- define "dra-exporter.selector" -}}
app.kubernetes.io/name: {{ include "dra-exporter.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "dra-exporter.labels" -}}
{{ include "dra-exporter.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
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
  runtimeClassName: nvidia
  deviceClassName: gpu.nvidia.com
  env:
    NVIDIA_VISIBLE_DEVICES: all
    NVIDIA_DRIVER_CAPABILITIES: utility
amd:
  sources: {nvml: false}
  deviceClassName: gpu.amd.com
intel:
  sources: {nvml: false}
  deviceClassName: gpu.intel.com
network:
  sources: {cpu: false, nvml: false}
cpu:
  sources: {netdev: false, nvml: false}
{{- end -}}

{{- define "dra-exporter.preset" -}}
{{- $all := include "dra-exporter.presets" . | fromYaml -}}
{{- $preset := dict -}}
{{- if .Values.vendor -}}
{{- $preset = get $all .Values.vendor -}}
{{- end -}}
{{- $preset | toYaml -}}
{{- end -}}
