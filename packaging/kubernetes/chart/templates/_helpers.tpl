{{- define "reassert.name" -}}
{{- if contains "reassert" .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}{{ printf "%s-reassert" (.Release.Name | trunc 41 | trimSuffix "-") }}{{ end }}
{{- end }}

{{- define "reassert.labels" -}}
app.kubernetes.io/name: reassert
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- /* The argument is (list . COMPONENT). */}}
{{- define "reassert.selector" -}}
app.kubernetes.io/name: reassert
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "reassert.image" -}}
{{- $image := .Values.image -}}
{{- if not $image.repository }}
{{- fail "image.repository is empty: there is no public image; build packaging/kubernetes/image/Dockerfile, push it, and set image.repository to it" }}
{{- end }}
{{- if $image.digest }}{{ $image.repository }}@{{ $image.digest }}
{{- else }}{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- /* Helm reads YAML 1.1 and reassert YAML 1.2: `value: on` would come out of toYaml as `true`, which reassert refuses.
So policy.audit changes the text. toYaml makes the policy only if that did not give what was to be, as of a string that
has words like a mode. A rule without a mode has the policy's. */}}
{{- define "reassert.policy" -}}
{{- $text := .Values.policy.text | default (.Files.Get "files/policy.yaml") }}
{{- with .Values.policy.preset }}
{{- if $.Values.policy.text }}{{ fail "policy.preset and policy.text are two policies: leave one of them out" }}{{ end }}
{{- $text = $.Files.Get (printf "files/presets/%s.yaml" .) | replace "\n  mode: Enforce\n" "\n  mode: Audit # later: policy.text, with mode: Enforce\n" }}
{{- end }}
{{- if .Values.policy.audit }}
{{- $wanted := fromYaml $text }}
{{- $audited := regexReplaceAll `(?m)((?:^|[\s{,])["']?mode["']?[ \t]*:[ \t]*["']?)Enforce\b` $text "${1}Audit" }}
{{- if not (hasKey $wanted.spec "mode") }}
{{- $audited = regexReplaceAll `(?m)^(["']?spec["']?:[ \t]*\{)` $audited "${1}mode: Audit, " }}
{{- $audited = regexReplaceAll `(?m)^(spec:[ \t]*(?:#.*)?\n(?:[ \t]*(?:#.*)?\n)*)( +)` $audited "${1}${2}mode: Audit\n${2}" }}
{{- end }}
{{- $_ := set $wanted.spec "mode" "Audit" }}
{{- range $wanted.spec.rules }}{{ if hasKey . "mode" }}{{ $_ := set . "mode" "Audit" }}{{ end }}{{ end }}
{{- deepEqual $wanted (fromYaml $audited) | ternary $audited (toYaml $wanted) }}
{{- else }}{{ $text }}{{ end }}
{{- end }}

{{- /* ConfigMaps are immutable and named by their content, so a pod and a revision of the DaemonSet always mean one
policy. The argument is (list . TEXT). */}}
{{- define "reassert.policyName" -}}
{{ include "reassert.name" (index . 0) | trunc 44 | trimSuffix "-" }}-policy-{{ index . 1 | sha256sum | trunc 10 }}
{{- end }}

{{- /* Checks of the values, before anything is applied. */}}
{{- define "reassert.check" -}}
{{- if .Values.policy.manage }}
{{- $policy := include "reassert.policy" . | fromYaml }}
{{- if and (hasKey $policy "Error") (not (hasKey $policy "spec")) }}
{{- fail (printf "policy.text is not YAML: %s" $policy.Error) }}
{{- end }}
{{- if or (ne (toString $policy.kind) "NodePolicy") (not (kindIs "map" $policy.spec)) }}
{{- fail "policy.text is not a policy of reassert: it needs apiVersion: reassert/v1, kind: NodePolicy and spec" }}
{{- end }}
{{- $excluded := false }}
{{- range dig "exclude" "namespaces" (list) $policy.spec }}
{{- if regexMatch (printf "^%s$" (. | regexQuoteMeta | replace "\\*" ".*" | replace "\\?" ".")) $.Release.Namespace }}
{{- $excluded = true }}
{{- end }}
{{- end }}
{{- if not $excluded }}
{{- fail (printf "the policy must exclude namespace %s (spec.exclude.namespaces), or the policy could refuse the pods that repair a node; kube-system is the best namespace" .Release.Namespace) }}
{{- end }}
{{- end }}
{{- $signed := (.Values.trust | default dict).clusterTrustBundle | default dict }}
{{- if and $signed.name $signed.signerName }}
{{- fail "trust.clusterTrustBundle: set name or signerName, not both" }}
{{- end }}
{{- if .Values.nri.enabled }}
{{- if not .Values.node.enabled }}
{{- fail "nri.enabled needs node.enabled, which installs the program, the policy and the verifying hook on the nodes" }}
{{- end }}
{{- $adapters := .Values.node.adapters }}
{{- if not (or (has "runtime" $adapters) (has "nri" $adapters)) }}
{{- fail "NRI fails open, so nri.enabled needs the wrapper or the verifying hook: add runtime or nri to node.adapters" }}
{{- end }}
{{- end }}
{{- end }}

{{- /* Whether the node pods get CA bundles. */}}
{{- define "reassert.trusts" -}}
{{- $signed := (.Values.trust | default dict).clusterTrustBundle | default dict }}
{{- if or (.Values.trust | default dict).configMap $signed.name $signed.signerName }}true{{ end }}
{{- end }}

{{- /* Whether the node pods talk to the API server. */}}
{{- define "reassert.reports" -}}
{{- if or .Values.node.startupTaint .Values.node.condition (.Values.fleet | default dict).enabled }}true{{ end }}
{{- end }}

{{- /* Whether a ValidatingAdmissionPolicy limits their token to their own node. */}}
{{- define "reassert.limitsToken" -}}
{{- $asked := .Values.node.tokenPolicy | default "Auto" }}
{{- $served := .Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy" }}
{{- if or (eq $asked "Always") (and (eq $asked "Auto") $served) }}true{{ end }}
{{- end }}

{{- /* securityContext of a pod and of a container at PodSecurity's level restricted. */}}
{{- define "reassert.unprivileged" -}}
{runAsNonRoot: true, runAsUser: 65534, runAsGroup: 65534, seccompProfile: {type: RuntimeDefault}}
{{- end }}

{{- define "reassert.restricted" -}}
{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}

{{- /* Fields of the pods of both DaemonSets. */}}
{{- define "reassert.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
priorityClassName: {{ .Values.priorityClassName | quote }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- include "reassert.placement" . }}
{{- end }}

{{- define "reassert.placement" }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- /* A hook of Helm that changes the env STATE of the node pods: a Job, and a ServiceAccount for this one DaemonSet. The
argument has root, component, hook, seconds and script; job: the component of another such Job, which it may delete. */}}
{{- define "reassert.stateHook" -}}
{{- $root := .root }}
{{- $name := printf "%s-%s" (include "reassert.name" $root) .component }}
{{- range $kind := list "ServiceAccount" "Role" "RoleBinding" "Job" }}
---
apiVersion: {{ get (dict "ServiceAccount" "v1" "Job" "batch/v1") $kind | default "rbac.authorization.k8s.io/v1" }}
kind: {{ $kind }}
metadata:
  name: {{ $name }}
  namespace: {{ $root.Release.Namespace }}
  labels:
    {{- include "reassert.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ $.component }}
  annotations:
    helm.sh/hook: {{ $.hook }}
    helm.sh/hook-weight: {{ eq $kind "Job" | ternary "0" "-1" | quote }}
    helm.sh/hook-delete-policy: before-hook-creation,hook-succeeded
{{- if eq $kind "ServiceAccount" }}
automountServiceAccountToken: false
{{- else if eq $kind "Role" }}
rules:
- apiGroups: [apps]
  resources: [daemonsets]
  resourceNames: [{{ include "reassert.name" $root }}-node]
  verbs: [get, list, watch, patch]
{{- with $.job }}
- apiGroups: [batch]
  resources: [jobs]
  resourceNames: [{{ include "reassert.name" $root }}-{{ . }}]
  verbs: [get, list, watch, delete]
{{- end }}
{{- else if eq $kind "RoleBinding" }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ $name }}}
subjects:
- {kind: ServiceAccount, name: {{ $name }}, namespace: {{ $root.Release.Namespace }}}
{{- else }}
spec:
  backoffLimit: 2
  activeDeadlineSeconds: {{ $.seconds }}
  template:
    metadata:
      labels:
        {{- include "reassert.labels" $root | nindent 8 }}
        app.kubernetes.io/component: {{ $.component }}
    spec:
      restartPolicy: Never
      serviceAccountName: {{ $name }}
      automountServiceAccountToken: true
      enableServiceLinks: false
      {{- with $root.Values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- include "reassert.placement" $root | nindent 6 }}
      securityContext: {{ include "reassert.unprivileged" $root }}
      containers:
      - name: state
        image: {{ include "reassert.image" $root }}
        imagePullPolicy: {{ $root.Values.image.pullPolicy }}
        command: [/bin/sh, -ec]
        args:
        - |
          alias kubectl='kubectl --namespace={{ $root.Release.Namespace }}'
          {{- $.script | nindent 10 }}
        securityContext: {{ include "reassert.restricted" $root }}
{{- end }}
{{- end }}
{{- end }}
