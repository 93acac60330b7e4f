{{/* The seconds of a duration as Prometheus writes it: 1h30m. */}}
{{- define "dra-exporter.seconds" -}}
{{- $units := dict "s" 1 "m" 60 "h" 3600 "d" 86400 "w" 604800 -}}
{{- $sum := 0 -}}
{{- range regexFindAll "[0-9]+[smhdw]" . -1 -}}
{{- $sum = add $sum (mul (regexFind "[0-9]+" . | int64) (get $units (regexFind "[smhdw]" .))) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* The prices as the lines of a PromQL expression. */}}
{{- define "dra-exporter.prices" -}}
{{- $terms := list -}}
{{- range .Values.prometheusRule.prices -}}
{{- $terms = append $terms (printf "%g + 0 * device:dra_model:info{model=~%q}" (float64 .perHour) .models) -}}
{{- end -}}
{{- $terms | join "\n  or\n    " | default "device:dra_model:info > 1" -}}
{{- end -}}

{{/* The expected clusters without an exporter as the lines of a PromQL expression. */}}
{{- define "dra-exporter.absent" -}}
{{- $exporters := "cluster:dra_exporters:count" -}}
{{- $terms := list -}}
{{- range .Values.prometheusRule.clusters -}}
{{- $terms = append $terms (printf "absent(%s{cluster=%q})" $exporters .) -}}
{{- end -}}
{{- if not $terms -}}
{{- $terms = append $terms (printf "group by (cluster) (last_over_time(%s[1d])) unless on (cluster) %s" $exporters $exporters) -}}
{{- $terms = append $terms (printf "label_replace(absent(%s), \"cluster\", \"\", \"\", \"\") == 1" $exporters) -}}
{{- end -}}
{{- $terms | join "\nor\n" -}}
{{- end -}}

{{/* What the abbreviations in files/rules.yaml stand for, as YAML: dashboards/rules/options.go has the same ones. */}}
{{- define "dra-exporter.ruleWords" -}}
{{- $r := .Values.prometheusRule -}}
"<interval>": {{ $r.interval | quote }}
"<idle interval>": {{ $r.idle.interval | quote }}
{{- $long := min 240 (include "dra-exporter.seconds" $r.idle.interval | int64 | mul 2) (include "dra-exporter.seconds" $r.rateWindow | int64) }}
"<long interval>": {{ printf "%ds" $long | quote }}
"<long interval seconds>": {{ $long | quote }}
"<rate>": {{ $r.rateWindow | quote }}
"<idle window>": {{ $r.idle.window | quote }}
"<held seconds>": {{ include "dra-exporter.seconds" $r.idle.window | float64 | mulf $r.idle.held | printf "%g" | quote }}
"<held>": {{ $r.idle.held | float64 | printf "%g" | quote }}
"<used share>": {{ $r.idle.usedShare | float64 | printf "%g" | quote }}
"<used percent>": {{ mulf $r.idle.usedShare 100 | printf "%.4g%%" | quote }}
"<idle memory>": {{ $r.idle.memory | float64 | printf "%g" | quote }}
"<partly>": {{ $r.idle.partly | float64 | printf "%g" | quote }}
"<opt out>": {{ $r.idle.optOut | quote }}
"<error window>": {{ $r.errorWindow | quote }}
"<throttled>": {{ $r.throttledRatio | float64 | printf "%g" | quote }}
"<stale>": {{ include "dra-exporter.seconds" $r.staleAfter | quote }}
"<down>": {{ $r.downRatio | float64 | printf "%g" | quote }}
"<job>": {{ $r.job | quote }}
"<grafana>": {{ $r.grafanaURL | trimSuffix "/" | quote }}
"<page>": {{ include "dra-exporter.pageURL" . | quote }}
"<absent>": {{ include "dra-exporter.absent" . | quote }}
"<prices>": {{ include "dra-exporter.prices" . | quote }}
{{- with .Values.compat }}
"<compat interval>": {{ .interval | quote }}
"<exported labels>": {{ ternary ", exported_namespace, exported_pod, exported_container" "" .exportedLabels | quote }}
"<dcgm job>": {{ .dcgmExporter.job | quote }}
"<amd job>": {{ .amdDeviceMetricsExporter.job | quote }}
"<amd prefix>": {{ .amdDeviceMetricsExporter.prefix | quote }}
{{- end }}
{{- end -}}

{{/* The groups of a file of rules that record the series of another exporter. */}}
{{- define "dra-exporter.compatRules" -}}
{{- $words := include "dra-exporter.ruleWords" .root | fromYaml -}}
{{- $groups := list -}}
{{- range (.root.Files.Get .file | fromYaml).groups -}}
{{- $rules := list -}}
{{- range $rule := .rules -}}
{{- $rules = append $rules (include "dra-exporter.rule" (dict "rule" $rule "own" dict "words" $words "values" $.root.Values.prometheusRule "gateway" "") | fromYaml) -}}
{{- end -}}
{{- $groups = append $groups (dict "name" .name "rules" $rules "interval" (get $words .interval)) -}}
{{- end -}}
groups: {{- toYaml $groups | nindent 2 }}
{{- end -}}

{{/* The groups of rules, by the values: all, or those of a scope. */}}
{{- define "dra-exporter.rules" -}}
{{- $values := .Values.prometheusRule -}}
{{- if gt (include "dra-exporter.seconds" $values.idle.interval | int64) (include "dra-exporter.seconds" $values.rateWindow | int64) -}}
{{- fail (printf "prometheusRule.idle.interval: %s is longer than prometheusRule.rateWindow, %s: what is between would not count" $values.idle.interval $values.rateWindow) -}}
{{- end -}}
{{- $words := include "dra-exporter.ruleWords" . | fromYaml -}}
{{- $groups := list -}}
{{- range (.Files.Get "files/rules.yaml" | fromYaml).groups -}}
{{- $rules := list -}}
{{- range $rule := ternary .rules list (has $values.rules (list "all" .scope)) -}}
{{- $own := get $values.alerts ($rule.id | default "") | default dict -}}
{{- if dig "enabled" true $own -}}
{{- $rules = append $rules (include "dra-exporter.rule" (dict "rule" $rule "own" $own "words" $words "values" $values "gateway" $.Values.gateway.url) | fromYaml) -}}
{{- end -}}
{{- end -}}
{{- if $rules -}}
{{- $group := dict "name" .name "rules" $rules -}}
{{- with .interval -}}
{{- $_ := set $group "interval" (get $words . | default .) -}}
{{- end -}}
{{- $groups = append $groups $group -}}
{{- end -}}
{{- end -}}
groups: {{- toYaml $groups | nindent 2 }}
{{- end -}}

{{/* One rule, with the values of its alert. */}}
{{- define "dra-exporter.rule" -}}
{{- $out := omit .rule "id" "namespaced" -}}
{{- range $field, $name := dict "for" "for" "keepFiringFor" "keep_firing_for" -}}
{{- with get $.own $field -}}
{{- $_ := set $out $name . -}}
{{- end -}}
{{- end -}}
{{- $words := merge (dict "<for>" ($out.for | default "0s")) .words -}}
{{- $expr := .rule.expr -}}
{{- $annotations := .rule.annotations | default dict -}}
{{- /* The gateway finds the node of a claim or device, and knows who may see it. */ -}}
{{- with .gateway -}}
{{- $to := printf "%s/${1}/${2}?node={{ $$labels.node | urlquery }}" (trimSuffix "/" . | replace "$" "$$") -}}
{{- with $annotations.page_url -}}
{{- $_ := set $annotations "page_url" (regexReplaceAll "^<page>/#(claim|pod|device)=(.*)$" . $to) -}}
{{- end -}}
{{- end -}}
{{- /* A link without an address is dropped. */ -}}
{{- range $name, $word := dict "page_url" "<page>" "dashboard_url" "<grafana>" -}}
{{- if not (get $words $word) -}}
{{- $_ := unset $annotations $name -}}
{{- end -}}
{{- end -}}
{{- range $word, $text := $words -}}
{{- $expr = replace $word $text $expr -}}
{{- range $name, $annotation := $annotations -}}
{{- $_ := set $annotations $name (replace $word $text $annotation) -}}
{{- end -}}
{{- end -}}
{{- $ignored := concat .values.ignoreNamespaces (.own.ignoreNamespaces | default list) -}}
{{- if and .own.ignoreNamespaces (not .rule.namespaced) -}}
{{- fail (printf "prometheusRule.alerts.%s.ignoreNamespaces: the alert is not about a claim" .rule.id) -}}
{{- end -}}
{{- if and $ignored .rule.namespaced -}}
{{- $info := hasPrefix "DRAPod" .rule.id | ternary "dra_pod_claim_info" "dra_claim_device_info" -}}
{{- $expr = printf "(\n  %s\n)\nunless on (cluster, namespace) %s{namespace=~%q}" ($expr | replace "\n" "\n  ") $info (join "|" $ignored) -}}
{{- end -}}
{{- $_ := set $out "expr" $expr -}}
{{- with .rule.record -}}
{{- $_ := set $out "record" (replace "<amd prefix>" (get $words "<amd prefix>") .) -}}
{{- end -}}
{{- if .rule.id -}}
{{- $labels := merge (dict) (.own.labels | default dict) .rule.labels -}}
{{- with .own.severity -}}
{{- $_ := set $labels "severity" . -}}
{{- end -}}
{{- $_ := set $out "labels" $labels -}}
{{- end -}}
{{- toYaml $out -}}
{{- end -}}
