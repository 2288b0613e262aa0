{{/* Name of everything namespaced; by default the release's name. */}}
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

{{/* Of the pod of `helm test`: not the operator's own name, whose Service must not lead there. */}}
{{- define "kvmedic.testLabels" -}}
app.kubernetes.io/name: kvmedic-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of an object that has none of its own. */}}
{{- define "kvmedic.labels" -}}
{{ include "kvmedic.labelsAnd" (list . "" dict) }}
{{- end -}}

{{/* The chart's labels and commonLabels, with an object's own over the latter. Takes a list: root, value's name, labels. */}}
{{- define "kvmedic.labelsAnd" -}}
{{- $root := index . 0 -}}
{{ include "kvmedic.selectorLabels" $root }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- include "kvmedic.givenLabels" . -}}
{{- end -}}

{{/* Labels out of the values, each on a line of its own after a line break. Takes the same list. */}}
{{- define "kvmedic.givenLabels" -}}
{{- $root := index . 0 -}}
{{- range $value, $labels := dict "commonLabels" $root.Values.commonLabels (index . 1) (index . 2) -}}
{{- range $label, $_ := $labels -}}
{{- if has $label (list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart" "kvmedic.io/shard") -}}
{{- fail (printf "%s: the chart sets the label %s itself; remove it" $value $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $label, $value := merge (dict) (index . 2) $root.Values.commonLabels }}
{{ $label }}: {{ $value | quote }}
{{- end -}}
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

{{/* How a monitor asks; takes its values. */}}
{{- define "kvmedic.scraped" -}}
{{ toYaml (dict "interval" .interval) }}
{{- range $field := list "scrapeTimeout" "relabelings" "metricRelabelings" }}
{{- with index $ $field }}
{{ toYaml (dict $field .) }}
{{- end }}
{{- end }}
{{- end -}}
