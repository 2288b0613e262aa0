{{/* Where the files of one source's Secrets are mounted. */}}
{{- define "kvmedic.credentialsPath" -}}
/var/run/kvmedic/credentials
{{- end -}}

{{/*
The operator's configuration file. Secrets are never in it: it names the files in which they are mounted.
*/}}
{{- define "kvmedic.config" -}}
{{- $sources := dict -}}
{{- range $name, $source := .Values.sources -}}
{{- $_ := set $sources $name (include "kvmedic.source" (list $name $source) | fromYaml) -}}
{{- end -}}
{{- $process := dict "liveness" "http://0.0.0.0:8080/healthz" "telemetryPort" 8081 "release" .Release.Name -}}
{{- with .Values.watchNamespaces -}}
{{- $_ := set $process "watch" . -}}
{{- end -}}
{{- if ne .Values.logFormat "text" -}}
{{- $_ := set $process "logFormat" .Values.logFormat -}}
{{- end -}}
{{- $config := dict "process" $process "sources" $sources -}}
{{- range $section := list "scrape" "pace" "leadership" "kubernetes" "budgets" "storm" "compression" -}}
{{- with index $.Values $section -}}
{{- $_ := set $config $section . -}}
{{- end -}}
{{- end -}}
{{- $notify := dict -}}
{{- range $name, $destination := .Values.notify -}}
{{- $_ := set $notify $name (include "kvmedic.destination" (list $name $destination) | fromYaml) -}}
{{- end -}}
{{- with $notify -}}
{{- $_ := set $config "notify" . -}}
{{- end -}}
{{- with .Values.namespaces.requireLabel -}}
{{- $_ := set $config "namespaces" (dict "requireLabel" .) -}}
{{- end -}}
{{- if .Values.nodeHealth.nvidiaSmi -}}
{{- $_ := set $config "health" .Values.nodeHealth -}}
{{- end -}}
{{- if and .Values.probe.evaluations (not .Values.probe.trialPods) -}}
{{- fail "probe.evaluations needs probe.trialPods: set both, because an evaluation is one of a trial pod" -}}
{{- end -}}
{{- if .Values.probe.trialPods -}}
{{- $probe := dict "trialPods" true -}}
{{- if .Values.probe.evaluations -}}
{{- $_ := set $probe "evaluations" true -}}
{{- end -}}
{{- if .Values.probe.apiKeySecret -}}
{{- $_ := set $probe "apiKey" (dict "file" (printf "%s/%s" (include "kvmedic.credentialsPath" .) (include "kvmedic.probeKey" .))) -}}
{{- end -}}
{{- $_ := set $config "probe" $probe -}}
{{- end -}}
{{ toYaml $config }}
{{- end -}}

{{/* The file of the key for engines under test; no source has a name with a dot. */}}
{{- define "kvmedic.probeKey" -}}
probe.api-key
{{- end -}}

{{/* One source, with the references to Secrets turned into paths. Takes a list: name and source. */}}
{{- define "kvmedic.source" -}}
{{- $directory := printf "%s/%s" (include "kvmedic.credentialsPath" .) (index . 0) -}}
{{- $source := index . 1 -}}
{{- /* Here and not in the schema, whose messages repeat the value. */ -}}
{{- if contains "@" $source.url -}}
{{- fail (printf "sources.%s.url: credentials do not belong in it; use basicAuth with a passwordSecret" (index . 0)) -}}
{{- end -}}
{{- if contains "@" ($source.proxy | default "") -}}
{{- fail (printf "sources.%s.proxy: credentials do not belong in it; use a proxy that lets the operator's pod in" (index . 0)) -}}
{{- end -}}
{{- if gt (len (compact (list $source.bearerTokenSecret $source.basicAuth (include "kvmedic.authorization" $source)))) 1 -}}
{{- fail (printf "sources.%s: give only one of bearerTokenSecret, basicAuth and a header Authorization" (index . 0)) -}}
{{- end -}}
{{- $written := omit $source "bearerTokenSecret" "basicAuth" "ca" "clientCertificateSecret" "headers" -}}
{{- if $source.bearerTokenSecret -}}
{{- $_ := set $written "bearerTokenFile" (printf "%s/token" $directory) -}}
{{- end -}}
{{- with $source.basicAuth -}}
{{- $_ := set $written "basicAuth" (dict "username" .username "password" (dict "file" (printf "%s/password" $directory))) -}}
{{- end -}}
{{- if $source.ca -}}
{{- $_ := set $written "caFile" (printf "%s/ca.crt" $directory) -}}
{{- end -}}
{{- if $source.clientCertificateSecret -}}
{{- $_ := set $written "certFile" (printf "%s/tls.crt" $directory) -}}
{{- $_ := set $written "keyFile" (printf "%s/tls.key" $directory) -}}
{{- end -}}
{{- with include "kvmedic.headers" (list $directory $source.headers) | fromYaml -}}
{{- $_ := set $written "headers" . -}}
{{- end -}}
{{ toYaml $written }}
{{- end -}}

{{/* Headers, with the references to Secrets turned into paths. Takes a list: directory and headers. */}}
{{- define "kvmedic.headers" -}}
{{- $directory := index . 0 -}}
{{- $headers := dict -}}
{{- range $header, $value := index . 1 -}}
{{- if kindIs "map" $value -}}
{{- $value = dict "file" (printf "%s/header-%s" $directory (lower $header)) -}}
{{- end -}}
{{- $_ := set $headers $header $value -}}
{{- end -}}
{{ toYaml $headers }}
{{- end -}}

{{/* The directory of one destination's Secrets; no source has a name with a dot. */}}
{{- define "kvmedic.destinationFolder" -}}
notify.{{ . }}
{{- end -}}

{{/* One destination of notifications, with the references to Secrets turned into paths. Takes a list: name and destination. */}}
{{- define "kvmedic.destination" -}}
{{- $directory := printf "%s/%s" (include "kvmedic.credentialsPath" .) (include "kvmedic.destinationFolder" (index . 0)) -}}
{{- $destination := index . 1 -}}
{{- $written := omit $destination "urlSecret" "ca" "headers" -}}
{{- $_ := set $written "url" (dict "file" (printf "%s/url" $directory)) -}}
{{- if $destination.ca -}}
{{- $_ := set $written "caFile" (printf "%s/ca.crt" $directory) -}}
{{- end -}}
{{- with include "kvmedic.headers" (list $directory $destination.headers) | fromYaml -}}
{{- $_ := set $written "headers" . -}}
{{- end -}}
{{ toYaml $written }}
{{- end -}}

{{/* Not empty when a source's headers carry an identity. */}}
{{- define "kvmedic.authorization" -}}
{{- range $header, $_ := .headers -}}
{{- if eq (lower $header) "authorization" -}}
yes
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Sources of the projected volume: the key for engines under test, and each Secret's one key under the name of its metrics source or destination. */}}
{{- define "kvmedic.credentials" -}}
{{- if .Values.probe.trialPods }}
{{- with .Values.probe.apiKeySecret }}
{{ include "kvmedic.mounted" (list "secret" .name .key (include "kvmedic.probeKey" $)) }}
{{- end }}
{{- end }}
{{- range $name, $source := .Values.sources }}
{{- with $source.bearerTokenSecret }}
{{ include "kvmedic.mounted" (list "secret" .name .key (printf "%s/token" $name)) }}
{{- end }}
{{- with $source.basicAuth }}
{{ include "kvmedic.mounted" (list "secret" .passwordSecret.name .passwordSecret.key (printf "%s/password" $name)) }}
{{- end }}
{{- with $source.clientCertificateSecret }}
{{ include "kvmedic.mounted" (list "secret" .name "tls.crt" (printf "%s/tls.crt" $name)) }}
{{ include "kvmedic.mounted" (list "secret" .name "tls.key" (printf "%s/tls.key" $name)) }}
{{- end }}
{{- include "kvmedic.mountedOfBoth" (list $name $source) }}
{{- end }}
{{- range $name, $destination := .Values.notify }}
{{- $folder := include "kvmedic.destinationFolder" $name }}
{{ include "kvmedic.mounted" (list "secret" $destination.urlSecret.name $destination.urlSecret.key (printf "%s/url" $folder)) }}
{{- include "kvmedic.mountedOfBoth" (list $folder $destination) }}
{{- end }}
{{- end -}}

{{/* Items of what sources and destinations have alike: authorities and headers. Takes a list: folder, and either. */}}
{{- define "kvmedic.mountedOfBoth" -}}
{{- $folder := index . 0 }}
{{- range $kind, $from := (index . 1).ca }}
{{ include "kvmedic.mounted" (list $kind $from.name $from.key (printf "%s/ca.crt" $folder)) }}
{{- end }}
{{- range $header, $value := (index . 1).headers }}
{{- if kindIs "map" $value }}
{{ include "kvmedic.mounted" (list "secret" $value.secret.name $value.secret.key (printf "%s/header-%s" $folder (lower $header))) }}
{{- end }}
{{- end }}
{{- end -}}

{{/* One item of a projected volume. Takes a list: kind, object, key, path. */}}
{{- define "kvmedic.mounted" -}}
- {{ index . 0 }}:
    name: {{ index . 1 }}
    items: [{key: {{ index . 2 | quote }}, path: {{ index . 3 | quote }}}]
{{- end -}}

{{/* Refuses what is given beside the chart's own parts of the pod and would take their place. */}}
{{- define "kvmedic.extras" -}}
{{- range $index, $variable := .Values.extraEnv -}}
{{- if or (has $variable.name (list "KVMEDIC_CONFIG" "POD_NAME" "POD_NAMESPACE")) (hasPrefix "KVMEDIC_SHARD__" (upper $variable.name)) -}}
{{- fail (printf "extraEnv[%d].name: the chart sets %s itself; remove it" $index $variable.name) -}}
{{- end -}}
{{- end -}}
{{- $volumes := list -}}
{{- range $index, $volume := .Values.extraVolumes -}}
{{- if has $volume.name (concat $volumes (list "config" "credentials")) -}}
{{- fail (printf "extraVolumes[%d].name: there is a volume %s already; give it another name" $index $volume.name) -}}
{{- end -}}
{{- $volumes = append $volumes $volume.name -}}
{{- end -}}
{{- range $index, $mount := .Values.extraVolumeMounts -}}
{{- if not (has $mount.name $volumes) -}}
{{- fail (printf "extraVolumeMounts[%d].name: %s is none of extraVolumes; add it there" $index $mount.name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
