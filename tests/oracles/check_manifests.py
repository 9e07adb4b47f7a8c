"""check_manifests.py PYTORCHJOB_CRD MANIFEST...: checks manifests of Kubernetes against the schemas of their API versions.

Kubernetes's own kinds: the schemas of the package kubernetes-validate. PyTorchJob: the definition in the module of the training operator.
JobSet: the models of the package kubeflow-trainer-api, and the job inside it as a Job. Fields that a schema does not know are errors.
"""
import sys

import jsonschema
import kubernetes_validate
import yaml
from kubeflow_trainer_api import models

KUBERNETES = ("1.31", "1.33", "1.37")
# The types of JobSet (jobset_types.go) and of the training operator (common_types.go) name these; the schemas above do not.
FAILURE_ACTIONS = {"FailJobSet", "RestartJobSet", "RestartJobSetAndIgnoreMaxRestarts", "RestartJob",
                   "RestartJobAndIgnoreMaxRestarts"}
RESTART_STRATEGIES = {"Recreate", "BlockingRecreate", "InPlaceRestart"}
RESTART_POLICIES = {"Always", "OnFailure", "Never", "ExitCode"}


def strict(schema):
    """An openAPIV3Schema of a definition as a JSON schema that refuses unknown fields."""
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    result = {key: value for key, value in schema.items() if not key.startswith("x-")}
    if "properties" in schema:
        result["properties"] = {name: strict(value) for name, value in schema["properties"].items()}
        result.setdefault("additionalProperties", bool(schema.get("x-kubernetes-preserve-unknown-fields")))
    for key in ("items", "additionalProperties"):
        if isinstance(result.get(key), dict):
            result[key] = strict(result[key])
    return result


def check_against_definition(document, path):
    with open(path, encoding="utf-8") as file:
        versions = yaml.safe_load(file)["spec"]["versions"]
    version = document["apiVersion"].split("/")[1]
    schema = next(v["schema"]["openAPIV3Schema"] for v in versions if v["name"] == version)
    # Those of every kind are not part of the definition.
    schema["properties"]["metadata"] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True, "properties": {}}
    jsonschema.validate(document, strict(schema))
    for replica in document["spec"]["pytorchReplicaSpecs"].values():
        assert replica["restartPolicy"] in RESTART_POLICIES


def missing(part, whole, where=""):
    """The places in `part` that `whole` does not have."""
    if isinstance(part, dict):
        for name, value in part.items():
            if name not in whole:
                yield f"{where}.{name}"
            else:
                yield from missing(value, whole[name], f"{where}.{name}")
    elif isinstance(part, list):
        for index, value in enumerate(part):
            yield from missing(value, whole[index], f"{where}[{index}]")
    elif part != whole:
        yield f"{where}: {part} became {whole}"


def check_job_set(document):
    understood = models.JobsetV1alpha2JobSet.from_dict(document).to_dict()
    unknown = list(missing(document, understood))
    assert not unknown, unknown
    policy = document["spec"]["failurePolicy"]
    assert policy["restartStrategy"] in RESTART_STRATEGIES
    assert all(rule["action"] in FAILURE_ACTIONS for rule in policy["rules"])
    for job in document["spec"]["replicatedJobs"]:
        as_job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": document["metadata"], **job["template"]}
        check_own(as_job)


def check_own(document):
    for version in KUBERNETES:
        kubernetes_validate.validate(document, version, strict=True)


def main(definition, *manifests):
    for manifest in manifests:
        with open(manifest, encoding="utf-8") as file:
            documents = list(yaml.safe_load_all(file))
        for document in documents:
            if document["kind"] == "PyTorchJob":
                check_against_definition(document, definition)
            elif document["kind"] == "JobSet":
                check_job_set(document)
            else:
                check_own(document)
            print(f"{document['kind']} {document['apiVersion']} is as its schema says")


main(*sys.argv[1:])
