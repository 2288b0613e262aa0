{{/* Name of everything namespaced; the release's name unless told otherwise. */}}
{{- define "kvmedic.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{ .Values.fullnameOverride | trunc 48 | trimSuffix "-" }}
{{- else if contains "kvmedic" .Release.Name -}}
{{ .Release.Name | trunc 48 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-kvmedic" .Release.Name | trunc 48 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{- define "kvmedic.selectorLabels" -}}
app.kubernetes.io/name: kvmedic
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kvmedic.labels" -}}
{{ include "kvmedic.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{- define "kvmedic.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{ default (include "kvmedic.fullname" .) .Values.serviceAccount.name }}
{{- else -}}
{{ required "serviceAccount.name: name an existing ServiceAccount, or set serviceAccount.create to true" .Values.serviceAccount.name }}
{{- end -}}
{{- end -}}

{{/* Registry, repository and tag or digest; a digest wins over a tag. */}}
{{- define "kvmedic.image" -}}
{{- $image := .Values.image -}}
{{- $name := ternary $image.repository (printf "%s/%s" $image.registry $image.repository) (empty $image.registry) -}}
{{- if $image.digest -}}
{{ $name }}@{{ $image.digest }}
{{- else -}}
{{ $name }}:{{ default .Chart.AppVersion $image.tag }}
{{- end -}}
{{- end -}}
