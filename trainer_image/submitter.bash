# BASH_ENV of the trainer's images: each bash reads it before its own script.
# KubeRay's submitter waits in a shell until Ray's dashboard answers. As the first process of its PID namespace, that
# shell would ignore SIGTERM. A head that is deleted before its dashboard answers would keep its place on the node for
# its whole grace period, and with that delay the job's next attempt. With a trap the shell ends when the command ends
# for which it waits at that moment. So the submitter still follows a training's output to its end.
case ${BASH_EXECUTION_STRING:-} in
  *"ray job submit"*) trap exit TERM ;;
esac
