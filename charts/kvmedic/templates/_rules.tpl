{{/*
The rules of one scope out of files/permissions.yaml, each verb with its reason as a comment.
Takes a list: the root context and the scope.
*/}}
{{- define "kvmedic.rules" -}}
{{- $root := index . 0 -}}
{{- $scope := index . 1 -}}
{{- range $root.Files.Get "files/permissions.yaml" | fromYamlArray -}}
{{- $allowed := true }}
{{- with .only }}
{{- $path := splitList "." . }}
{{- $allowed = index $root.Values (first $path) (last $path) }}
{{- end }}
{{- $names := .names }}
{{- if and (eq .resource "leases") (eq .scope "own") $names (gt (int $root.Values.shards) 1) }}
{{- $names = list }}
{{- range $index := until (int $root.Values.shards) }}
{{- $names = append $names (printf "kvmedic-shard-%d" $index) }}
{{- end }}
{{- end }}
{{- if and (eq .scope $scope) $allowed }}
{{- $verbs := list }}
{{- range .grants }}
{{- $verbs = append $verbs .verb }}
# {{ .verb }} ({{ .neededBy }}): {{ .why }}
{{- end }}
- apiGroups: [{{ .group | quote }}]
  resources: [{{ .resource }}]
  {{- with $names }}
  resourceNames: [{{ join ", " . }}]
  {{- end }}
  verbs: [{{ join ", " $verbs }}]
{{- end }}
{{- end }}
{{- end -}}
