{{- /*
Shared by the charts. Each has its kustomize base as the folder base/. A chart renders
the same manifests, changed by its values.
*/ -}}

{{- /* hawser.objects: the objects of the base, with the changes of all charts, as {"objects": […]}. */ -}}
{{- define "hawser.objects" -}}
{{- include "hawser.folder" (dict "root" . "folder" "base") -}}
{{- end -}}

{{- /* hawser.folder: likewise the objects of another base, the folder .folder. */ -}}
{{- define "hawser.folder" -}}
{{- $all := list -}}
{{- $root := .root -}}
{{- $folder := .folder -}}
{{- $kustomization := $root.Files.Get (printf "%s/kustomization.yaml" $folder) | fromYaml -}}
{{- $namespace := $root.Release.Namespace -}}
{{- $cluster := list "ClusterRole" "ClusterRoleBinding" "ValidatingWebhookConfiguration" "ValidatingAdmissionPolicy" "ValidatingAdmissionPolicyBinding" -}}
{{- range $file := $kustomization.resources -}}
{{- if ne $file "../namespace" -}}
{{- range $text := regexSplit "(?m)^---$" ($root.Files.Get (printf "%s/%s" $folder $file) | replace "serviceaccount:hawser:" (printf "serviceaccount:%s:" $namespace)) -1 -}}
{{- $o := fromYaml $text -}}
{{- if $o.kind -}}
{{- if not (has $o.kind $cluster) -}}{{- $_ := set $o.metadata "namespace" $namespace -}}{{- end -}}
{{- range $kustomization.labels -}}
{{- $_ := set $o.metadata "labels" (merge (dict) .pairs ($o.metadata.labels | default dict)) -}}
{{- end -}}
{{- range $o.subjects -}}{{- $_ := set . "namespace" $namespace -}}{{- end -}}
{{- $all = append $all $o -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "objects" $all | toJson -}}
{{- end -}}

{{- /* hawser.overlay: the objects that the overlay in the folder registration/ adds to the base, as {"objects": […]}. They set their own namespaces, except that of the release. */ -}}
{{- define "hawser.overlay" -}}
{{- $all := list -}}
{{- $kustomization := .Files.Get "registration/kustomization.yaml" | fromYaml -}}
{{- $namespace := .Release.Namespace -}}
{{- range $file := $kustomization.resources -}}
{{- if or (ne $file "registration-controllers.yaml") $.Values.registration.controllers -}}
{{- range $text := regexSplit "(?m)^---$" ($.Files.Get (printf "registration/%s" $file)) -1 -}}
{{- $o := fromYaml $text -}}
{{- if and $o.kind (ne $o.kind "Namespace") -}}
{{- range $kustomization.labels -}}{{- $_ := set $o.metadata "labels" (merge (dict) .pairs ($o.metadata.labels | default dict)) -}}{{- end -}}
{{- range $o.subjects -}}{{- if eq .namespace "hawser" -}}{{- $_ := set . "namespace" $namespace -}}{{- end -}}{{- end -}}
{{- $all = append $all $o -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- dict "objects" $all | toJson -}}
{{- end -}}

{{- /* hawser.volumes: adds the volumes of the Deployment in the file .patch to the Deployment .object. They replace volumes of the same name. */ -}}
{{- define "hawser.volumes" -}}
{{- $more := (.root.Files.Get .patch | fromYaml).spec.template.spec -}}
{{- $pod := .object.spec.template.spec -}}
{{- $volumes := $more.volumes -}}
{{- $names := list -}}
{{- range $volumes -}}{{- $names = append $names .name -}}{{- $_ := unset . "persistentVolumeClaim" -}}{{- end -}}
{{- range $pod.volumes -}}{{- if not (has .name $names) -}}{{- $volumes = append $volumes . -}}{{- end -}}{{- end -}}
{{- $_ := set $pod "volumes" $volumes -}}
{{- $container := first $pod.containers -}}
{{- $_ := set $container "volumeMounts" (concat (first $more.containers).volumeMounts $container.volumeMounts) -}}
{{- end -}}

{{- /* hawser.configMap: a ConfigMap of config.yaml in the base, or in the folder .from. The settings of .config override it; those in .without are removed. Its name ends in a hash of its content, as with kustomize, so that pods restart when it changes. */ -}}
{{- define "hawser.configMap" -}}
{{- $text := .root.Files.Get (printf "%s/config.yaml" (.from | default "base")) -}}
{{- $base := fromYaml $text -}}
{{- $config := mergeOverwrite (deepCopy $base) .config -}}
{{- range .without -}}{{- $config = omit $config . -}}{{- end -}}
{{- if ne (toJson $base) (toJson $config) -}}{{- $text = printf "%s\n" (toYaml $config) -}}{{- end -}}
{{- $kustomization := .root.Files.Get "base/kustomization.yaml" | fromYaml -}}
{{- $data := dict "config.yaml" $text -}}
{{- $sum := dict "kind" "ConfigMap" "name" "" "data" $data | toJson | sha256sum | trunc 10 -}}
{{- range $from, $to := dict "0" "g" "1" "h" "3" "k" "a" "m" "e" "t" -}}{{- $sum = replace $from $to $sum -}}{{- end -}}
{{- $labels := dict -}}
{{- range $kustomization.labels -}}{{- $labels = merge $labels .pairs -}}{{- end -}}
{{- dict "apiVersion" "v1" "kind" "ConfigMap" "metadata" (dict "name" (printf "%s-%s" .name $sum) "namespace" .root.Release.Namespace "labels" $labels) "data" $data | toJson -}}
{{- end -}}

{{- /* hawser.deployment: the Deployment .object, with the values that every chart has. */ -}}
{{- define "hawser.deployment" -}}
{{- $o := .object -}}
{{- $values := .root.Values -}}
{{- $template := $o.spec.template -}}
{{- $pod := $template.spec -}}
{{- $container := first $pod.containers -}}
{{- $image := $values.image -}}
{{- $name := printf "%s/%s" $image.registry $container.image -}}
{{- if $image.digest -}}{{- $name = printf "%s@%s" $name $image.digest -}}{{- else -}}{{- $name = printf "%s:%s" $name ($image.tag | default .root.Chart.AppVersion) -}}{{- end -}}
{{- $_ := set $container "image" $name -}}
{{- with $image.pullPolicy -}}{{- $_ := set $container "imagePullPolicy" . -}}{{- end -}}
{{- $_ := set $container "args" (concat $container.args $values.extraArgs) -}}
{{- $_ := set $container "env" (concat $container.env $values.extraEnv) -}}
{{- $_ := set $container "resources" (mergeOverwrite $container.resources $values.resources) -}}
{{- $_ := set $container "volumeMounts" (concat $container.volumeMounts $values.extraVolumeMounts) -}}
{{- $_ := set $pod "volumes" (concat $pod.volumes $values.extraVolumes) -}}
{{- range $field := list "imagePullSecrets" "nodeSelector" "tolerations" "affinity" "topologySpreadConstraints" "priorityClassName" -}}
{{- with index $values $field -}}{{- $_ := set $pod $field . -}}{{- end -}}
{{- end -}}
{{- with $values.podLabels -}}{{- $_ := set $template.metadata "labels" (merge $template.metadata.labels .) -}}{{- end -}}
{{- with $values.podAnnotations -}}{{- $_ := set $template.metadata "annotations" . -}}{{- end -}}
{{- end -}}

{{- /* hawser.networkPolicy: the NetworkPolicy .object, with the namespace of the readers of metrics. */ -}}
{{- define "hawser.networkPolicy" -}}
{{- $from := .root.Values.networkPolicy.metricsFrom -}}
{{- range .object.spec.ingress -}}
{{- range .from -}}{{- $_ := set . "namespaceSelector" (dict "matchLabels" (dict "kubernetes.io/metadata.name" $from)) -}}{{- end -}}
{{- end -}}
{{- end -}}

{{- /* hawser.monitoring: the PodMonitor and the PrometheusRule, if enabled, as {"objects": […]}. */ -}}
{{- define "hawser.monitoring" -}}
{{- $all := list -}}
{{- $values := .Values.monitoring -}}
{{- range $o := (include "hawser.folder" (dict "root" . "folder" "monitoring") | fromJson).objects -}}
{{- $_ := set $o.metadata "labels" (merge $o.metadata.labels $values.labels) -}}
{{- if or (and (eq $o.kind "PodMonitor") $values.podMonitor) (and (eq $o.kind "PrometheusRule") $values.rules) -}}{{- $all = append $all $o -}}{{- end -}}
{{- end -}}
{{- dict "objects" $all | toJson -}}
{{- end -}}

{{- /* hawser.print: objects as YAML. */ -}}
{{- define "hawser.print" -}}
{{- range . }}
---
{{ toYaml . }}
{{- end }}
{{- end -}}
