{{- define "gazette-consumer.name" -}}
{{- default (printf "%s-%s" .Release.Name .Chart.Name) .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "gazette-consumer.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: consumer
{{- end }}

{{- define "gazette-consumer.labels" -}}
{{ include "gazette-consumer.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "gazette-consumer.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ include "gazette-consumer.name" . }}{{ else }}{{ required "serviceAccount.name is needed if serviceAccount.create is false" .Values.serviceAccount.name }}{{ end -}}
{{- end }}
