package deploy

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/yaml"
)

func read(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../../deploy", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Each object of the manifests is one of the API, down to every field.
func TestManifests(t *testing.T) {
	kinds := map[string]any{
		"apps/v1 Deployment": &appsv1.Deployment{}, "v1 Service": &corev1.Service{}, "v1 Pod": &corev1.Pod{},
		"batch/v1 CronJob": &batchv1.CronJob{}, "policy/v1 PodDisruptionBudget": &policyv1.PodDisruptionBudget{}, "networking.k8s.io/v1 NetworkPolicy": &networkingv1.NetworkPolicy{},
	}
	seen := make(map[string]bool)
	files := map[string][]byte{"kubernetes.yaml": read(t, "kubernetes.yaml"), "sidecar.yaml": read(t, "sidecar.yaml")}
	for i, text := range shown(t, "kubernetes.md", "yaml") {
		files[fmt.Sprintf("kubernetes.md, block %d", i+1)] = []byte(text)
	}
	for file, text := range files {
		for i, text := range bytes.Split(text, []byte("\n---\n")) {
			var head struct{ APIVersion, Kind string }
			if err := yaml.Unmarshal(text, &head); err != nil {
				t.Fatalf("%s, object %d: %v", file, i+1, err)
			}
			kind := head.APIVersion + " " + head.Kind
			if kinds[kind] == nil {
				t.Errorf("%s: %s is not known here", file, kind)
				continue
			}
			seen[kind] = true
			object := reflect.New(reflect.TypeOf(kinds[kind]).Elem()).Interface()
			if err := yaml.UnmarshalStrict(text, object); err != nil {
				t.Errorf("%s: %s: %v", file, kind, err)
			}
			switch o := object.(type) {
			case *appsv1.Deployment:
				checkDeployment(t, o)
			case *batchv1.CronJob:
				checkPod(t, o.Spec.JobTemplate.Spec.Template.Spec)
			}
		}
	}
	if len(seen) != len(kinds) {
		t.Errorf("only %v were found", seen)
	}
}

// checkDeployment finds what would make a rolling update lose requests, and names without a match.
func checkDeployment(t *testing.T, d *appsv1.Deployment) {
	t.Helper()
	pod := d.Spec.Template
	if fmt.Sprint(d.Spec.Selector.MatchLabels) != fmt.Sprint(pod.Labels) {
		t.Error("the selector does not match the pods")
	}
	c := pod.Spec.Containers[0]
	switch ready := c.ReadinessProbe.HTTPGet.Path; {
	case ready == "/leader" && d.Spec.Strategy.Type != appsv1.RecreateDeploymentStrategyType:
		t.Error("a rolling update waits for ever for a second leader")
	case ready == "/readyz" && (d.Spec.Strategy.RollingUpdate.MaxUnavailable.IntValue() != 0 || *d.Spec.Replicas < 2):
		t.Error("a rolling update leaves nobody to serve")
	case ready != "/leader" && ready != "/readyz" || c.LivenessProbe.HTTPGet.Path != "/healthz":
		t.Error("probes")
	}
	checkPod(t, pod.Spec)
}

// checkPod finds mounts without a volume, and secrets that serve refuses.
func checkPod(t *testing.T, pod corev1.PodSpec) {
	t.Helper()
	volumes := make(map[string]bool)
	for _, v := range pod.Volumes {
		volumes[v.Name] = true
		if v.Secret != nil && *v.Secret.DefaultMode&0o027 != 0 {
			t.Errorf("the mode %o of volume %s is refused by serve", *v.Secret.DefaultMode, v.Name)
		}
	}
	for _, m := range pod.Containers[0].VolumeMounts {
		if !volumes[m.Name] {
			t.Errorf("there is no volume %s", m.Name)
		}
	}
}

// What the files run has flags that the command has.
func TestFlags(t *testing.T) {
	path := holdfast(t)
	var known []string
	for _, verb := range [][]string{{"serve", "--help"}, {"serve", "check", "--help"}} {
		help, err := exec.Command(path, verb...).Output()
		if err != nil {
			t.Fatal(err)
		}
		known = append(known, regexp.MustCompile(`--[a-z-]+`).FindAllString(string(help), -1)...)
	}
	for _, file := range []string{"holdfast.service", "Containerfile", "kubernetes.yaml", "sidecar.yaml"} {
		for line := range strings.Lines(string(read(t, file))) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "#") {
				continue
			}
			_, line, _ = strings.Cut(line, "serve")
			for _, flag := range regexp.MustCompile(`--[a-z-]+`).FindAllString(line, -1) {
				if !slices.Contains(known, flag) {
					t.Errorf("%s: holdfast serve has no %s", file, flag)
				}
			}
		}
	}
}

// systemd understands the unit, and finds nothing to complain of in what it may do.
func TestUnit(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("there is no systemd-analyze")
	}
	unit := bytes.ReplaceAll(read(t, "holdfast.service"), []byte("/usr/bin/holdfast"), []byte("/bin/true")) // it need not be installed
	path := filepath.Join(t.TempDir(), "holdfast.service")
	if err := os.WriteFile(path, unit, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(analyze, "verify", "--man=no", path).CombinedOutput(); err != nil || bytes.Contains(out, []byte("holdfast.service")) {
		t.Errorf("verify: %v\n%s", err, out)
	}
	out, err := exec.Command(analyze, "security", "--offline=true", "--threshold=20", path).CombinedOutput()
	if err != nil {
		t.Errorf("security: %v\n%s", err, out)
	}
}
