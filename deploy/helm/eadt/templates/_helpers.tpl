{{- define "eadt.name" -}}
{{- if contains "eadt" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-eadt" .Release.Name | trunc 50 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- define "eadt.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* Labels of everything: (dict "root" $ "part" "processor"). */ -}}
{{- define "eadt.labels" -}}
{{ include "eadt.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
app.kubernetes.io/part-of: eadt
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "eadt.selector" -}}
app.kubernetes.io/name: eadt
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{- /* The parts that are switched on, separated by spaces. */ -}}
{{- define "eadt.parts" -}}
{{- $parts := list "processor" "actuator" }}
{{- if .Values.collector.enabled }}{{ $parts = append $parts "collector" }}{{ end }}
{{- if .Values.archiver.enabled }}{{ $parts = append $parts "archiver" }}{{ end }}
{{- if eq (include "eadt.optimizer" .) "alone" }}{{ $parts = append $parts "optimizer" }}{{ end }}
{{- if .Values.agent.enabled }}{{ $parts = append $parts "agent" }}{{ end }}
{{- if .Values.exporter.enabled }}{{ $parts = append $parts "exporter" }}{{ end }}
{{- if .Values.dashboard.enabled }}{{ $parts = append $parts "dashboard" }}{{ end }}
{{- join " " $parts }}
{{- end }}

{{- define "eadt.podMetadata" -}}
labels:
  {{- include "eadt.labels" . | nindent 2 }}
  {{- with .root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
annotations:
  # New settings are new pods.
  checksum/settings: {{ include "eadt.settings" .root | sha256sum }}
  {{- with .root.Values.podAnnotations }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{- /* A user without rights, nothing writable, no capability. */ -}}
{{- define "eadt.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "eadt.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "eadt.podCommon" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- end }}

{{- define "eadt.environment" -}}
- {name: EADT_CONFIG_FILE, value: /etc/eadt/eadt.toml}
- {name: EADT_HTTP__ADDRESS, value: "0.0.0.0:9464"}
- {name: EADT_LOG__FORMAT, value: json}
{{- end }}

{{- define "eadt.environmentFrom" -}}
{{- with .Values.kafka.secretName }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
{{- end }}

{{- /* Of the port with this name: (dict "port" "learning"), or everything, for the port metrics. */ -}}
{{- define "eadt.probes" -}}
{{- $port := ternary .port "metrics" (hasKey . "port") -}}
startupProbe:
  httpGet: {path: /healthz, port: {{ $port }}}
  periodSeconds: 2
  failureThreshold: 30
livenessProbe:
  httpGet: {path: /healthz, port: {{ $port }}}
  periodSeconds: 10
  timeoutSeconds: 3
  failureThreshold: 6
readinessProbe:
  httpGet: {path: /readyz, port: {{ $port }}}
  periodSeconds: 5
  timeoutSeconds: 3
{{- end }}

{{- /* Whether the collector speaks to the API server: "true", or "" for not at all. */ -}}
{{- define "eadt.collectorAsks" -}}
{{- if or .Values.collector.pods.enabled (eq (include "eadt.reviews" .) "true") }}true{{ end }}
{{- end }}

{{- /* Whether it asks there whose tokens are. */ -}}
{{- define "eadt.reviews" -}}
{{- if and .Values.collector.progress.enabled .Values.collector.progress.serviceAccounts.enabled }}true{{ end }}
{{- end }}

{{- /* The settings file: what the chart has values for, and what is given on top. */ -}}
{{- define "eadt.settings" -}}
{{- $kubernetes := .Values.actuator.kubernetesSettings }}
{{- if .Values.actuator.onlyNamespace }}
{{- $kubernetes = merge (dict "only_namespace" .Values.actuator.onlyNamespace) $kubernetes }}
{{- end }}
{{- $collector := dict "nvml" (dict "enabled" .Values.collector.nvml) }}
{{- if .Values.collector.pods.enabled }}
{{- $kubelet := dict "enabled" true "api_server" true "socket" "/pod-resources/kubelet.sock" }}
{{- if .Values.collector.pods.processes }}{{ $_ := set $kubelet "process_directory" "/proc" }}{{ end }}
{{- $_ := set $collector "kubelet" $kubelet }}
{{- end }}
{{- $security := .Values.kafka.security }}
{{- if .Values.kafka.authoritySecretName }}
{{- $security = mergeOverwrite (dict "ca_file" "/etc/eadt/kafka-ca.crt") $security }}
{{- end }}
{{- $bus := dict "brokers" .Values.kafka.brokers "properties" .Values.kafka.properties }}
{{- if $security }}{{ $_ := set $bus "security" $security }}{{ end }}
{{- $chart := dict
  "bus" $bus
  "topics" (dict "prefix" .Values.topics.prefix "partitions" (int .Values.topics.partitions) "replication" (int .Values.topics.replication))
  "collector" (mergeOverwrite $collector .Values.collector.settings)
  "processor" (mergeOverwrite (dict "controller" .Values.processor.controller) .Values.processor.settings)
  "actuator" .Values.actuator.settings
  "archiver" (mergeOverwrite (dict "location" .Values.archiver.location) .Values.archiver.settings)
}}
{{- if .Values.optimizer.settings }}{{ $_ := set $chart "optimizer" .Values.optimizer.settings }}{{ end }}
{{- if .Values.exporter.settings }}{{ $_ := set $chart "metrics" .Values.exporter.settings }}{{ end }}
{{- if .Values.dashboard.settings }}{{ $_ := set $chart "dashboard" .Values.dashboard.settings }}{{ end }}
{{- if $kubernetes }}{{ $_ := set $chart "kubernetes" $kubernetes }}{{ end }}
{{- toToml (mergeOverwrite $chart .Values.settings) }}
{{- end }}

{{- /* Where the optimizer runs: "beside" the archiver, whose volume it reads, "alone", for an object store, or "" for nowhere. */ -}}
{{- define "eadt.optimizer" -}}
{{- if .Values.optimizer.enabled }}
{{- if contains "://" .Values.archiver.location }}alone
{{- else if and .Values.archiver.enabled .Values.archiver.storage.size }}beside
{{- else }}{{ fail "optimizer.enabled: there is no archive to learn from; enable the archiver with a volume, or set archiver.location to an object-store URL" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "eadt.optimizerContainer" -}}
- name: optimizer
  image: {{ include "eadt.image" .root }}
  imagePullPolicy: {{ .root.Values.image.pullPolicy }}
  args: [optimizer]
  env:
    {{- include "eadt.environment" .root | replace "0.0.0.0:9464" (printf "0.0.0.0:%d" (int .number)) | nindent 4 }}
    {{- with include "eadt.kafkaUser" (dict "root" .root "part" "optimizer") }}{{ . | nindent 4 }}{{ end }}
  {{- include "eadt.environmentFrom" .root | nindent 2 }}
  ports:
    - {name: {{ .port }}, containerPort: {{ .number }}}
  {{- include "eadt.probes" (dict "port" .port) | nindent 2 }}
  securityContext: {{- include "eadt.containerSecurity" .root | nindent 4 }}
  resources: {{- toYaml .root.Values.optimizer.resources | nindent 4 }}
  volumeMounts:
    - {name: settings, mountPath: /etc/eadt, readOnly: true}
    {{- if .archive }}
    - {name: data, mountPath: /var/lib/eadt, readOnly: true}
    {{- end }}
{{- end }}

{{- define "eadt.settingsVolume" -}}
- name: settings
  projected:
    sources:
      - configMap: {name: {{ include "eadt.name" . }}-settings}
      {{- with .Values.kafka.authoritySecretName }}
      - secret: {name: {{ . }}, items: [{key: ca.crt, path: kafka-ca.crt}]}
      {{- end }}
{{- end }}

{{- /* How a part (dict "root" $ "part" "processor") is known to Kafka. */ -}}
{{- define "eadt.kafkaUser" -}}
{{- with get .root.Values.kafka.users .part }}
- {name: EADT_BUS__SECURITY__USERNAME, value: {{ . }}}
- name: EADT_BUS__SECURITY__PASSWORD
  valueFrom: {secretKeyRef: {name: {{ . }}, key: password}}
{{- end }}
{{- end }}
