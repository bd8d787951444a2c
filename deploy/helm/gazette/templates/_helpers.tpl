{{/* Names and texts that several templates use. */}}

{{- define "gazette.name" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- end }}

{{- define "gazette.selector" -}}
app.kubernetes.io/name: gazette
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "gazette.labels" -}}
{{ include "gazette.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "gazette.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}{{ include "gazette.name" . }}{{ else }}{{ required "serviceAccount.name is needed if serviceAccount.create is false" .Values.serviceAccount.name }}{{ end -}}
{{- end }}

{{/* Of pods: a user without rights, who owns volumes. */}}
{{- define "gazette.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{/* Of containers. */}}
{{- define "gazette.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "gazette.scheme" -}}
{{- if .Values.tls.existingSecret }}https{{ else }}http{{ end -}}
{{- end }}

{{/* Host by which others reach a broker, with the pod's variables in it. */}}
{{- define "gazette.advertisedHost" -}}
{{- $default := ternary "name" "ip" (ne .Values.tls.existingSecret "") -}}
{{- if eq (default $default .Values.brokers.advertise) "ip" -}}
$(POD_IP)
{{- else -}}
$(POD_NAME).{{ include "gazette.name" . }}-brokers.{{ .Release.Namespace }}.svc
{{- end -}}
{{- end }}

{{- define "gazette.etcdAddress" -}}
{{- if .Values.etcd.external.addresses -}}
{{ join "," .Values.etcd.external.addresses }}
{{- else -}}
{{- $name := include "gazette.name" . -}}
{{- $members := list -}}
{{- range $at := until (int .Values.etcd.replicas) -}}
{{- $members = append $members (printf "http://%s-etcd-%d.%s-etcd.%s.svc:2379" $name $at $name $.Release.Namespace) -}}
{{- end -}}
{{ join "," $members }}
{{- end -}}
{{- end }}

{{/* Affinity and spread of a component: (dict "root" $ "component" "broker" "values" .Values.brokers "byZone" true) */}}
{{- define "gazette.placement" -}}
affinity:
  podAntiAffinity:
    {{- if eq .values.antiAffinity "required" }}
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels:
            {{- include "gazette.selector" .root | nindent 12 }}
            app.kubernetes.io/component: {{ .component }}
    {{- else }}
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels:
              {{- include "gazette.selector" .root | nindent 14 }}
              app.kubernetes.io/component: {{ .component }}
    {{- end }}
{{- if .byZone }}
topologySpreadConstraints:
  - topologyKey: topology.kubernetes.io/zone
    maxSkew: 1
    whenUnsatisfiable: {{ .values.zoneSpread }}
    labelSelector:
      matchLabels:
        {{- include "gazette.selector" .root | nindent 8 }}
        app.kubernetes.io/component: {{ .component }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{/* Variables by which gazctl, or a client, reaches the brokers; with the mounts of "gazette.clientMounts". */}}
{{- define "gazette.clientEnv" -}}
- name: BROKER_ADDRESS
  value: {{ include "gazette.scheme" . }}://{{ include "gazette.name" . }}.{{ .Release.Namespace }}.svc:8080
{{- if .Values.tls.existingSecret }}
- {name: BROKER_TRUSTED_CA_FILE, value: /etc/gazette/tls/ca.crt}
{{- if .Values.tls.clientCertificates }}
- {name: BROKER_CERT_FILE, value: /etc/gazette/tls/tls.crt}
- {name: BROKER_CERT_KEY_FILE, value: /etc/gazette/tls/tls.key}
{{- end }}
{{- end }}
{{- with .Values.auth.existingSecret }}
- name: BROKER_AUTH_KEYS
  valueFrom: {secretKeyRef: {name: {{ . }}, key: keys}}
{{- end }}
{{- end }}
