package main

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"sigs.k8s.io/yaml"
)

// krewName is the file name of the manifest. krew requires the name of the plugin.
const krewName = "dra.yaml"

// krewPlatform is an archive that krew installs.
type krewPlatform struct {
	Selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	} `json:"selector"`
	URI    string              `json:"uri"`
	SHA256 string              `json:"sha256"`
	Bin    string              `json:"bin"`
	Files  []map[string]string `json:"files"`
}

// krew writes the manifest by which krew installs kubectl dra. It names the programs without cgo,
// which need no vendor's library, because they run on users' machines.
func (r release) krew(platforms []string) error {
	var out []krewPlatform
	for _, platform := range platforms {
		system, arch, _ := strings.Cut(strings.TrimSuffix(platform, purego), "-")
		if !strings.HasSuffix(platform, purego) {
			continue
		}
		archive := r.name(platform) + ".tar.gz"
		content, err := os.ReadFile(filepath.Join(r.Out, archive))
		if err != nil {
			return err
		}
		p := krewPlatform{
			URI:    fmt.Sprintf("%s/releases/download/v%s/%s", repository, r.Version, archive),
			SHA256: fmt.Sprintf("%x", sha256.Sum256(content)), Bin: "kubectl-dra",
			Files: []map[string]string{
				{"from": r.name(platform) + "/dra-exporter", "to": "kubectl-dra"},
				{"from": r.name(platform) + "/LICENSE", "to": "."},
			},
		}
		p.Selector.MatchLabels = map[string]string{"os": system, "arch": arch}
		out = append(out, p)
	}
	manifest, err := yaml.Marshal(map[string]any{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2",
		"kind":       "Plugin",
		"metadata":   map[string]string{"name": strings.TrimSuffix(krewName, ".yaml")},
		"spec": map[string]any{
			"version": "v" + r.Version, "homepage": repository,
			"shortDescription": "Who holds which DRA device, and what it does",
			"description": "Shows the devices, claims, pods and incidents of all nodes that dra-exporter runs on,\n" +
				"through the API server: kubectl dra top | claim NAME | why NAME | incidents.\n",
			"caveats": "It needs the rights to list pods and to get pods/proxy where dra-exporter runs,\n" +
				"and asks its pods by their label app.kubernetes.io/name=dra-exporter.\n",
			"platforms": out,
		},
	})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(r.Out, krewName), manifest, 0o644)
}
